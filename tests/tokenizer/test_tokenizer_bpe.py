"""Byte-level BPE on small vocabularies, where the merges can be followed by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxtrain.errors import UserError
from tests.tokenizer.vocabularies import CONTROL, NORMAL, USER_DEFINED, bpe_metadata, byte_pairs, load, texts_of


def pieces(metadata, text, **options):
    tokenizer = load(metadata)
    return texts_of(tokenizer, tokenizer.encode(text, **options))


def test_merges_go_by_rank_then_from_the_left():
    merges = ["b c", "a b", "l l", "h e", "he ll", "hell o"]
    assert pieces(bpe_metadata(merges), "abc") == ["a", "bc"]
    assert pieces(bpe_metadata(merges), "abbc") == ["ab", "bc"]
    assert pieces(bpe_metadata(merges), "lll") == ["ll", "l"]
    assert pieces(bpe_metadata(merges), "hello") == ["hello"]


def test_a_merge_makes_room_for_the_next_on_both_sides():
    # c+d first; then b+cd, then a+bcd, then abcd+e
    assert pieces(bpe_metadata(["c d", "b cd", "a bcd", "abcd e"]), "abcdeabcd") == ["abcde", "abcd"]


def test_the_first_of_a_repeated_merge_counts():
    metadata = bpe_metadata(["a b", "b c"])
    metadata["tokenizer.ggml.merges"] = ["b c", "a b", "b c"]
    assert pieces(metadata, "abc") == ["a", "bc"]


def test_the_pre_tokenizer_cuts_before_merging():
    merges = ["1 2", "Ġ a", "a Ġ", "s Ċ"]
    assert pieces(bpe_metadata(merges, "gpt-2"), "12 a ") == ["12", "Ġa", "Ġ"]
    assert pieces(bpe_metadata(merges, "smollm"), "12 a ") == ["1", "2", "Ġa", "Ġ"]
    assert pieces(bpe_metadata(merges, "gpt-2"), "s\n") == ["s", "Ċ"]


def test_numbers_in_threes_and_newlines_after_punctuation():
    merges = ["1 2", "12 3", "123 4", "4 5", "! Ċ", "' S", "' s"]
    assert pieces(bpe_metadata(merges, "llama-bpe"), "12345", add_special=False) == ["123", "45"]
    assert pieces(bpe_metadata(merges, "llama-bpe"), "!\nx'S", add_special=False) == ["!Ċ", "x", "'S"]
    assert pieces(bpe_metadata(merges, "gpt-2"), "!\nx'S's") == ["!", "Ċ", "x", "'", "S", "'s"]


def test_a_whole_word_is_not_merged_where_the_pre_tokenizer_says_so():
    # "abc" is a token that no merge makes
    assert pieces(bpe_metadata(["a b"], "gpt-2", {"abc": NORMAL}), "abc") == ["ab", "c"]
    assert pieces(bpe_metadata(["a b"], "llama-bpe", {"abc": NORMAL}), "abc", add_special=False) == ["abc"]


def test_classes_are_those_of_unicode_15_1():
    # U+1C89 is a letter since Unicode 16, U+2FFC a symbol since 15.1: with llama.cpp unassigned, and not a letter
    merges = [f"Ġ {c}" for c in "áâ"]
    for text in (" \u1c89", " \u2ffc"):
        assert pieces(bpe_metadata(merges, "gpt-2"), text)[0] in ("Ġá", "Ġâ")
    assert pieces(bpe_metadata(["x á"], "gpt-2"), "x\u1c89")[:2] == ["x", "á"]
    assert pieces(bpe_metadata(["x á"], "gpt-2"), "x\u1c88")[:2] == ["xá", "²"]


SPECIALS = {"<|end|>": CONTROL, "<u>": USER_DEFINED, "ab": CONTROL, "bcd": CONTROL}


def test_control_tokens_are_parsed_on_request_and_user_defined_ones_always():
    metadata = bpe_metadata([], extra=SPECIALS)
    assert pieces(metadata, "x<|end|><u>") == ["x", "<|end|>", "<u>"]
    assert pieces(metadata, "x<|end|><u>", parse_special=False) == ["x", *"<|end|>", "<u>"]


def test_the_longest_special_token_goes_first_even_if_a_shorter_one_begins_before_it():
    assert pieces(bpe_metadata([], extra=SPECIALS), "abcd ab") == ["a", "bcd", "Ġ", "ab"]


def test_strip_attributes_take_the_spaces_beside_a_token():
    # jina-v2-de: <mask> strips to its left
    metadata = bpe_metadata([], "jina-v2-de", {"<mask>": CONTROL})
    assert pieces(metadata, "a \n<mask> b") == ["a", "<mask>", "Ġ", "b"]
    tokenizer = load(metadata)
    assert tokenizer.encode_with_offsets("a \n<mask> b")[1] == [0, 3, 9, 10]


def test_begin_and_end_tokens_and_offsets():
    merges = ["Ã ©"]  # the two bytes of é
    extra = {"<s>": CONTROL, "</s>": CONTROL}
    keys = {"bos_token_id": 257, "eos_token_id": 258}
    tokenizer = load(bpe_metadata(merges, "gpt-2", extra, add_bos_token=True, add_eos_token=True, **keys))
    ids, starts = tokenizer.encode_with_offsets("éx</s>y")
    assert ids == [257, 256, ord("x"), 258, ord("y"), 258]
    assert starts == [0, 0, 2, 3, 7, 8]
    assert tokenizer.encode("", add_special=True) == [257, 258]
    assert tokenizer.encode("", add_special=False) == []
    # Llama 3's pre-tokenizer adds a beginning unless the file says no
    assert load(bpe_metadata(merges, "llama-bpe", extra, **keys)).add_bos
    assert not load(bpe_metadata(merges, "llama-bpe", extra, add_bos_token=False, **keys)).add_bos
    assert not load(bpe_metadata(merges, "gpt-2", extra, **keys)).add_bos


@given(st.text(max_size=40))
def test_tokens_tile_the_text(text):
    for tokenizer in TILING:
        ids, starts = tokenizer.encode_with_offsets(text, add_special=False)
        assert ids == tokenizer.encode(text, add_special=False)
        data = text.encode()
        ends = [*starts[1:], len(data)] if starts else []
        assert [data[a:b] for a, b in zip(starts, ends, strict=True)] == [tokenizer.token_bytes(i) for i in ids]
        assert tokenizer.decode(ids) == text


TILING = [load(byte_pairs(pre)) for pre in ("default", "smollm", "qwen2", "tekken", "deepseek-v3", "superbpe")]


def test_streamed_bytes_may_end_inside_a_character():
    tokenizer = load(bpe_metadata([]))
    ids = tokenizer.encode("a👍")
    assert [tokenizer.token_bytes(i) for i in ids] == [b"a", b"\xf0", b"\x9f", b"\x91", b"\x8d"]
    assert tokenizer.decode(ids[:3]) == "a\ufffd"


def test_decode_may_leave_out_control_tokens():
    tokenizer = load(bpe_metadata([], extra=SPECIALS))
    ids = tokenizer.encode("x<|end|><u>y")
    assert tokenizer.decode(ids) == "x<|end|><u>y"
    assert tokenizer.decode(ids, skip_special=True) == "x<u>y"


def test_a_long_word_takes_its_time_in_proportion():
    # 200,000 letters in one word: minutes if each merge searched the whole word
    tokenizer = load(bpe_metadata(["a a", "aa aa", "aaaa aaaa"]))
    assert len(tokenizer.encode("a" * 200_000)) == 25_000


@pytest.mark.parametrize("text", ["\ud800", "ok \udcff\n", "é\udfff"])
def test_lone_surrogates_are_refused(text):
    with pytest.raises(UserError, match=r"not valid Unicode: lone surrogate U\+D"):
        load(bpe_metadata([])).encode(text)
