"""Token for token against llama.cpp itself, running in this process."""

import numpy as np
import pytest

from mlxtrain.tokenizer import load_tokenizer, pretokenize
from tests.llama_cpp import start, write_tiny_model
from tests.tokenizer.texts import FIXED, random_texts
from tests.tokenizer.vocabularies import USER_DEFINED, byte_pairs, read_metadata, spm_metadata

# Vocabulary: number of random texts. By hand, all of them were run over 10,000 each.
SAMPLED = {
    "llama-bpe": 300,
    "llama-spm": 1000,
    "gpt-2": 500,
    "qwen2": 300,
    "phi-3": 1000,
    "bert-bge": 1000,
    "deepseek-llm": 300,
    "deepseek-coder": 300,
    "falcon": 300,
    "starcoder": 200,
    "baichuan": 200,
    "gemma-4": 200,
}


def assert_equal(metadata, directory, texts, server_path=None):
    tokenizer = load_tokenizer(metadata, "test.gguf")
    path = server_path or write_tiny_model(directory / "tiny.gguf", metadata)
    with start(path) as server:
        for parse_special in (True, False):
            for number, text in enumerate(texts):
                options = {"parse_special": parse_special, "add_special": number % 4 == 0}
                ids, starts = tokenizer.encode_with_offsets(text, **options)
                assert ids == server.tokenize(text, **options), (text, options)
                assert ids == tokenizer.encode(text, **options)
                assert len(starts) == len(ids) and starts == sorted(starts)


def special_texts(metadata):
    types = metadata["tokenizer.ggml.token_type"]
    return [text for text, kind in zip(metadata["tokenizer.ggml.tokens"], types, strict=True) if kind in (2, 3, 4)][
        :400
    ]


def texts_for(metadata, count):
    specials = special_texts(metadata)
    rows = [" ".join(specials[i : i + 6]) for i in range(0, min(len(specials), 60), 6)]
    return FIXED + rows + [f"x {row}  \n y" for row in rows] + random_texts(count, 1, specials)


@pytest.mark.real
def test_smollm2_over_10000_random_texts(smollm2_gguf, tmp_path):
    metadata = read_metadata(smollm2_gguf)
    assert_equal(metadata, tmp_path, texts_for(metadata, 10_000), smollm2_gguf)


@pytest.mark.real
@pytest.mark.parametrize(("name", "count"), SAMPLED.items())
def test_published_vocabularies(llama_vocabs, tmp_path, name, count):
    metadata = read_metadata(llama_vocabs / f"ggml-vocab-{name}.gguf")
    assert_equal(metadata, tmp_path, texts_for(metadata, count))


def distinct_pre_tokenizers():
    """One name of each set of expressions, and those with a rule of their own."""
    seen = {}
    for name in pretokenize.names():
        seen.setdefault(tuple(pretokenize.pretokenizer(name).expressions), name)
    return sorted({*seen.values(), "smollm", "jina-v2-de"})


@pytest.mark.parametrize("pre", distinct_pre_tokenizers())
def test_pre_tokenizers(tmp_path, pre):
    metadata = byte_pairs(pre, share=0.1)
    assert_equal(metadata, tmp_path, texts_for(metadata, 40))


def test_overlapping_special_tokens(tmp_path):
    metadata = byte_pairs("gpt-2", share=0.01)
    tokens, types = list(metadata["tokenizer.ggml.tokens"]), metadata["tokenizer.ggml.token_type"].copy()
    for i, text in enumerate(["abc", "bcdef", "ab", "ef ", "  ", "\n\n", "\n\n\n", "<s><s>", "é<", "s>"]):
        tokens[256 + i], types[256 + i] = text, 3 if i % 2 else USER_DEFINED
    metadata |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    texts = ["abcdef ab", "abcdefabcef  \n\n\n\n\n x", "<s><s><s>é<s><s>", "aabcbcdef   é<abs>"]
    assert_equal(metadata, tmp_path, texts + random_texts(300, 3, special_texts(metadata)))


def test_sentencepiece_with_user_defined_spaces_and_scores_that_tie(tmp_path):
    letters = "abc\n"
    rng = np.random.default_rng(0)
    words = {c: -1.0 for c in ("▁", *letters)}
    while len(words) < 120:
        word = "".join(rng.choice(["▁", *letters], rng.integers(2, 5)))
        words[word] = float(-rng.integers(2, 12))
    metadata = spm_metadata(words, {"  ": USER_DEFINED, "    ": USER_DEFINED, "cabcab": USER_DEFINED})
    texts = ["".join(rng.choice([*" abc\n▁", "<s>", "é"], rng.integers(1, 40))) for _ in range(1500)]
    assert_equal(metadata, tmp_path, texts)
    assert_equal(metadata | {"tokenizer.ggml.add_space_prefix": False}, tmp_path, texts[:300])
