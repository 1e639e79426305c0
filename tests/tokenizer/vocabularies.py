"""Vocabularies for tests: read from files, and small ones made here."""

import random
from pathlib import Path
from typing import Any

import numpy as np

from mlxtrain.gguf.reader import GGUF
from mlxtrain.tokenizer import Tokenizer, load_tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def read_metadata(path: Path) -> dict[str, Any]:
    return dict(GGUF(path).metadata)


def byte_alphabet() -> list[str]:
    """GPT-2's byte alphabet, written anew: what is printable in Latin-1 as itself, the others from U+0100."""
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    others = [b for b in range(256) if b not in printable]
    return [chr(b) if b in printable else chr(256 + others.index(b)) for b in range(256)]


def bpe_metadata(
    merges: list[str], pre: str = "gpt-2", extra: dict[str, int] | None = None, **keys: Any
) -> dict[str, Any]:
    """Ids 0 to 255 are the bytes, then one token per merge, then `extra` (text: type)."""
    extra = extra or {}
    tokens = byte_alphabet() + [merge.replace(" ", "") for merge in merges] + list(extra)
    types = [NORMAL] * (len(tokens) - len(extra)) + list(extra.values())
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
    }
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def spm_metadata(scored: dict[str, float], extra: dict[str, int] | None = None, **keys: Any) -> dict[str, Any]:
    """Ids 0 to 2 are <unk> <s> </s>, 3 to 258 the bytes, then `scored`, then `extra` (text: type)."""
    extra = extra or {}
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *scored, *extra]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(scored) + list(extra.values())
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": np.array([0.0] * 259 + list(scored.values()) + [0.0] * len(extra), np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
    }
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def byte_pairs(pre: str, share: float = 0.2) -> dict[str, Any]:
    """A vocabulary that shows each cut: it merges a random share of all pairs of bytes, so that a cut anywhere else
    changes the tokens around it."""
    rng = random.Random(0)
    alphabet = byte_alphabet()
    merges = [f"{a} {b}" for a in alphabet for b in alphabet if rng.random() < share]
    rng.shuffle(merges)
    extra = {"<s>": CONTROL, "</s>": CONTROL, "<mask>": CONTROL, "<|im_end|>": CONTROL, "[tool]": USER_DEFINED}
    first = 256 + len(merges)
    return bpe_metadata(merges, pre, extra, bos_token_id=first, eos_token_id=first + 1)


def texts_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_text(i) for i in ids]


def load(metadata: dict[str, Any]) -> Tokenizer:
    return load_tokenizer(metadata, "test.gguf")
