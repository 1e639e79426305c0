"""What a vocabulary says about itself, and what is refused."""

import json
import unicodedata

import numpy as np
import pytest

from mlxtrain.errors import UserError
from mlxtrain.tokenizer import pretokenize, unicode
from tests.tokenizer.vocabularies import CONTROL, NORMAL, bpe_metadata, load, spm_metadata


@pytest.mark.parametrize("model", ["t5", "rwkv", "plamo2", "none", "no_vocab", "hybriddna", "whitespace", "nonsense"])
def test_other_tokenizer_models_are_refused_by_name(model):
    with pytest.raises(UserError, match=f"^test.gguf: tokenizer model '{model}' is not covered; expected one of gpt2"):
        load({"tokenizer.ggml.model": model, "tokenizer.ggml.tokens": ["a"]})


@pytest.mark.parametrize("pre", ["kimi-k2", "whitespace", "nonsense"])
def test_other_pre_tokenizers_are_refused_by_name_with_the_list_of_those_covered(pre):
    with pytest.raises(
        UserError, match=f"^test.gguf: pre-tokenizer '{pre}' is not covered; expected one of .*smollm"
    ) as e:
        load(bpe_metadata([], pre))
    assert "\n" not in str(e.value) and "qwen2" in str(e.value) and "sarvam-moe" in str(e.value)


def test_the_pre_tokenizers_that_models_in_use_name_are_covered():
    wanted = """default gpt-2 llama3 llama-bpe llama-v3 smaug-bpe smollm qwen2 qwen35 deepseek-llm deepseek-coder
        deepseek-v3 deepseek-r1-qwen falcon falcon3 mpt starcoder refact command-r codeshell olmo dbrx phi-2 stablelm2
        jina-v1-en jina-v2-de jina-v2-es jina-v2-code jina-es jina-de tekken gpt-4o llama4 chatglm-bpe glm4 minerva-7b
        bloom poro-chat viking exaone exaone4 hunyuan superbpe seed-coder lfm2 modern-bert"""
    assert set(wanted.split()) <= set(pretokenize.names())


def changed(**keys):
    return bpe_metadata(["a b"]) | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "no tokenizer.ggml.model in the metadata"),
        ({"tokenizer.ggml.model": "gpt2"}, "no tokenizer.ggml.tokens"),
        (changed(tokens=[]), "no tokenizer.ggml.tokens"),
        (changed(merges=None), "no tokenizer.ggml.merges"),
        (changed(token_type=[1, 1, 1]), "tokenizer.ggml.token_type has 3 entries; expected 257"),
        (changed(tokens=["a"] * 257), "'a' appears twice"),
        (
            changed(add_bos_token=True, bos_token_id=None, tokens=["a", "b"], token_type=None),
            "add_bos_token is set, but",
        ),
        (spm_metadata({"a": 0.0}) | {"tokenizer.ggml.scores": np.zeros(3)}, "scores has 3 entries; expected 260"),
        (spm_metadata({"a": 0.0}) | {"general.name": "Phi-3 mini"}, r"token '<\|endoftext\|>' is missing"),
    ],
)
def test_unsound_vocabularies_are_refused_in_one_line(metadata, message):
    with pytest.raises(UserError, match=f"^test.gguf: .*{message}") as e:
        load(metadata)
    assert "\n" not in str(e.value)


def test_ends_of_generation_are_known_by_key_and_by_text():
    extra = {
        "<|im_end|>": NORMAL,
        "<eos>": CONTROL,
        "<|eom_id|>": NORMAL,
        "<mine>": NORMAL,
        "<|file_sep|>": NORMAL,
        "x<eos>": NORMAL,
    }
    tokenizer = load(bpe_metadata([], extra=extra, eos_token_id=259, eot_token_id=65))
    assert tokenizer.eog_ids == {256, 257, 258, 259, 260, 65}
    # known texts become control tokens, whatever the file says; ids given by key do not
    assert [tokenizer.is_control(i) for i in (256, 257, 258, 259, 260, 261, 65)] == [True] * 3 + [
        False,
        True,
        False,
        False,
    ]


def test_harmony_has_an_end_that_does_not_end():
    extra = {"<|return|>": CONTROL, "<|call|>": CONTROL, "<|end|>": CONTROL, "<|start|>": CONTROL}
    tokenizer = load(bpe_metadata([], extra=extra, eos_token_id=256))
    assert tokenizer.eog_ids == {256, 257}
    assert tokenizer.encode("<|end|><|start|>", parse_special=False) == [258, 259]


def test_ids_outside_the_vocabulary_are_ignored():
    tokenizer = load(bpe_metadata([], bos_token_id=9999))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.pad_id) == (
        11,
        11,
        None,
        None,
    )  # gpt2's own


def test_arrays_may_be_lists_and_facts_are_plain():
    metadata = spm_metadata({"a": -1.0})
    lists = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in metadata.items()}
    tokenizer = load(lists)
    assert tokenizer.encode("a a") == load(metadata).encode("a a")
    facts = [tokenizer.model, tokenizer.pre, tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id]
    assert json.loads(json.dumps([*facts, tokenizer.add_bos, tokenizer.add_eos])) == [
        "llama",
        "",
        260,
        1,
        2,
        0,
        True,
        False,
    ]


def test_character_classes_are_those_of_the_unicode_database():
    """Where Python's database (14.0 or later) and the table both know a code point, they agree; categories of code
    points once assigned hardly ever change. With Python 3.13 (15.1) all agree."""
    first = {"L": 1, "N": 2, "M": 3, "P": 4, "S": 5, "C": 6, "Z": 7}
    python = np.array([0 if (c := unicodedata.category(chr(i))) == "Cn" else first[c[0]] for i in range(0x110000)])
    table = unicode.classes()
    known = np.ones(0x110000, bool) if unicodedata.unidata_version == "15.1.0" else (python > 0) & (table > 0)
    assert known.sum() > 280_000
    assert np.count_nonzero(python[known] != table[known]) <= (0 if unicodedata.unidata_version < "15.2" else 20)
    assert (
        np.count_nonzero(table) == 149_813 + 137_468 + 2_048 + 65
    )  # Unicode 15.1: graphic and format, private use, surrogates, controls


def test_collapsed_text_has_one_character_per_code_point():
    assert (
        unicode.collapse("aé1٣ \u3000\u0301।€\U0001f468\U000f0000\u0378") == "a\x811\x82 \x0b\x83\x84\x85\x85\x80\x80"
    )
    assert unicode.ascii_whitespace("é\n\u3000\u2028") == "é\n\x0b\x0b"
