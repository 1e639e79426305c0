"""llama.cpp's published vocabulary tests: `<vocabulary>.gguf.inp` with texts, `.out` with the tokens of each."""

import pytest

from mlxtrain.errors import UserError
from mlxtrain.tokenizer import load_tokenizer
from tests.tokenizer.texts import FIXED
from tests.tokenizer.vocabularies import read_metadata

pytestmark = pytest.mark.real

# Published with texts and tokens, and all of them covered.
WITH_TOKENS = [
    "bert-bge",
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
]
# Published without.
COVERED = ["aquila", "baichuan", "gpt-neox"]
REFUSED = {"nomic-bert-moe": "tokenizer model 't5' is not covered"}


def cases(path):
    inputs = path.with_name(path.name + ".inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    outputs = path.with_name(path.name + ".out").read_text().split("\n")
    if len(outputs) == len(inputs) + 1 and not outputs[-1]:  # some end with a line feed
        outputs.pop()
    return inputs, [[int(i) for i in line.split()] for line in outputs]


@pytest.mark.parametrize("name", WITH_TOKENS)
def test_published_tokens(llama_vocabs, name):
    path = llama_vocabs / f"ggml-vocab-{name}.gguf"
    tokenizer = load_tokenizer(read_metadata(path), path.name)
    texts, expected = cases(path)
    assert len(texts) == len(expected) >= 46
    for text, ids in zip(texts, expected, strict=True):
        assert tokenizer.encode(text, add_special=False, parse_special=False) == ids, repr(text)


@pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "qwen2", "deepseek-llm", "command-r"])  # have all bytes
def test_byte_level_tokens_tile_the_text(llama_vocabs, name):
    path = llama_vocabs / f"ggml-vocab-{name}.gguf"
    tokenizer = load_tokenizer(read_metadata(path), path.name)
    for text in [*cases(path)[0], *FIXED]:
        ids, starts = tokenizer.encode_with_offsets(text, add_special=False)
        data = text.encode()
        assert b"".join(map(tokenizer.token_bytes, ids)) == data
        assert tokenizer.decode(ids) == text
        assert [data[start : start + len(tokenizer.token_bytes(i))] for i, start in zip(ids, starts, strict=True)] == [
            tokenizer.token_bytes(i) for i in ids
        ]


def test_every_published_vocabulary_is_covered_or_refused_by_name(llama_vocabs):
    found = {path.name.removeprefix("ggml-vocab-").removesuffix(".gguf") for path in llama_vocabs.glob("*.gguf")}
    assert found == {*WITH_TOKENS, *COVERED, *REFUSED}
    assert {path.name.split(".")[0] for path in llama_vocabs.glob("*.inp")} == {f"ggml-vocab-{n}" for n in WITH_TOKENS}
    for name in COVERED:
        load_tokenizer(read_metadata(llama_vocabs / f"ggml-vocab-{name}.gguf"), name)
    for name, message in REFUSED.items():
        with pytest.raises(UserError, match=f"^{name}: {message}"):
            load_tokenizer(read_metadata(llama_vocabs / f"ggml-vocab-{name}.gguf"), name)
