"""SentencePiece-type and WordPiece tokenizers on small vocabularies, followed by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxtrain.errors import UserError
from tests.tokenizer.vocabularies import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, load, spm_metadata, texts_of

SCORED = {"▁": -1.0, "a": -2.0, "b": -3.0, "c": -4.0, "ab": -6.0, "bc": -5.0, "▁a": -7.0, "▁ab": -8.0, "aa": -6.0}


def pieces(metadata, text, add_special=False, **options):
    tokenizer = load(metadata)
    return texts_of(tokenizer, tokenizer.encode(text, add_special=add_special, **options))


def test_merges_go_by_score_then_from_the_left():
    metadata = spm_metadata(SCORED, add_space_prefix=False)
    assert pieces(metadata, "abc") == ["a", "bc"]
    assert pieces(metadata, "ab") == ["ab"]
    assert pieces(metadata, "aaa") == ["aa", "a"]
    assert pieces(metadata, "aab") == ["aa", "b"]  # equal scores: the left pair
    assert pieces(metadata, "ab ab") == ["ab", "▁ab"]


def test_a_space_goes_before_the_text_and_after_each_special_token():
    metadata = spm_metadata(SCORED, {"<x>": CONTROL, "<u>": USER_DEFINED})
    assert pieces(metadata, "a", add_special=True) == ["<s>", "▁a"]
    assert pieces(metadata, "a<x>a") == ["▁a", "<x>", "▁a"]
    assert pieces(metadata, "a<x> a") == ["▁a", "<x>", "▁", "▁a"]
    assert pieces(metadata, "<u>a", parse_special=False) == ["<u>", "▁a"]
    assert pieces(metadata, "") == []
    assert pieces(metadata | {"tokenizer.ggml.add_space_prefix": False}, "a<x>a") == ["a", "<x>", "a"]


def test_what_is_no_token_becomes_bytes():
    assert pieces(spm_metadata(SCORED), "aé\n") == ["▁a", "<0xC3>", "<0xA9>", "<0x0A>"]


def test_a_token_may_hold_a_space_inside():
    # "b▁a" may be merged, so there no cut is made in front of the space
    metadata = spm_metadata({**SCORED, "b▁a": -6.5, "b▁": -5.5}, add_space_prefix=False)
    assert pieces(metadata, "b a b") == ["b▁a", "▁", "b"]


def test_offsets_are_those_of_the_text_as_it_was():
    tokenizer = load(spm_metadata(SCORED, {"<x>": CONTROL}))
    ids, starts = tokenizer.encode_with_offsets("a a<x>é a", add_special=True)
    assert texts_of(tokenizer, ids) == ["<s>", "▁a", "▁a", "<x>", "▁", "<0xC3>", "<0xA9>", "▁a"]
    assert starts == [0, 0, 1, 3, 6, 6, 7, 8]
    # a U+2581 of the text's own has three bytes
    ids, starts = tokenizer.encode_with_offsets("▁a b▁c", add_special=False)
    assert texts_of(tokenizer, ids) == ["▁", "▁a", "▁", "b", "▁", "c"]
    assert starts == [0, 0, 4, 5, 6, 9]


@given(st.text(alphabet=st.sampled_from("ab c\né▁👍"), max_size=30))
def test_decoding_gives_the_text_back(text):
    tokenizer = load(spm_metadata(SCORED))
    ids, starts = tokenizer.encode_with_offsets(text)
    assert tokenizer.decode(ids, skip_special=True) == text.replace("▁", " ")
    assert ids == tokenizer.encode(text)
    assert starts == sorted(starts) and len(starts) == len(ids)


def test_a_missing_byte_token_is_told():
    metadata = spm_metadata(SCORED)
    tokens = list(metadata["tokenizer.ggml.tokens"])
    tokens[tokens.index("<0xC3>")] = "spare"
    with pytest.raises(UserError, match=r"test.gguf: the text needs byte token <0xC3>"):
        load(metadata | {"tokenizer.ggml.tokens": tokens}).encode("é")


WORDPIECE = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁he", "llo", "▁hello", "s", "▁!", "▁日", "▁$", "▁e", "▁x", "▁HE"]


def wordpiece(**keys):
    types = [CONTROL, UNKNOWN, CONTROL, CONTROL] + [NORMAL] * (len(WORDPIECE) - 4)
    metadata = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": WORDPIECE,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.unknown_token_id": 1,
    }
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def test_wordpiece_takes_the_longest_piece_and_gives_up_on_whole_words():
    assert pieces(wordpiece(), "hellos hellox he") == ["▁hello", "s", "[UNK]", "▁he"]
    assert pieces(wordpiece(), "hello", add_special=True) == ["[CLS]", "▁hello", "[SEP]"]
    assert pieces(wordpiece(), "[SEP] he") == ["[SEP]", "▁he"]


def test_wordpiece_normalises():
    assert pieces(wordpiece(), "HÉLLO") == ["▁hello"]
    assert pieces(wordpiece(), "he\u0301llo") == ["▁hello"]  # a combining accent
    assert pieces(wordpiece(), "he!日日$x\x07\ufffdhe") == ["▁he", "▁!", "▁日", "▁日", "▁$", "[UNK]"]
    assert pieces(wordpiece(**{"normalizer.lowercase": False}), "HE é") == ["▁HE", "[UNK]"]
    assert pieces(wordpiece(**{"normalizer.strip_accents": False}), "HE é e") == ["▁he", "[UNK]", "▁e"]


def test_wordpiece_offsets():
    tokenizer = load(wordpiece())
    text = "\u3000Hé\u0301LLOs!日 zz"
    ids, starts = tokenizer.encode_with_offsets(text)
    assert texts_of(tokenizer, ids) == ["[CLS]", "▁hello", "s", "▁!", "▁日", "[UNK]", "[SEP]"]
    assert starts == [0, 3, 11, 12, 13, 17, 19]
    assert tokenizer.decode(ids, skip_special=True) == " hellos ! 日"
