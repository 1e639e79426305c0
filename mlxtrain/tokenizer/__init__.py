"""Tokenizers rebuilt from GGUF metadata, token for token what llama.cpp makes of the same file.

`load_tokenizer` reads the vocabulary; the tokenizer's `encode`, `encode_with_offsets`, `decode` and `token_bytes` do
the work. A tokenizer model or pre-tokenizer that is not covered is refused by name.
"""

from collections.abc import Mapping
from typing import Any

from mlxtrain.errors import Unsupported
from mlxtrain.tokenizer import pretokenize
from mlxtrain.tokenizer.base import Tokenizer
from mlxtrain.tokenizer.bpe import BPETokenizer
from mlxtrain.tokenizer.spm import RawBPETokenizer, SPMTokenizer
from mlxtrain.tokenizer.vocab import Vocab
from mlxtrain.tokenizer.wordpiece import WordPieceTokenizer

__all__ = ["Tokenizer", "load_tokenizer"]

_MODELS = ("gpt2", "llama", "bert", "gemma4")
_RAW_BPE = ("gemma4", "granite-embed-multi-311m", "sarvam-moe")  # by tokenizer.ggml.pre


def load_tokenizer(metadata: Mapping[str, Any], source: str) -> Tokenizer:
    """The tokenizer that a GGUF's metadata describes; `source` names the file in messages.

    Arrays may be lists or NumPy arrays; texts that are not UTF-8 are expected with surrogate escapes.
    Raises `Unsupported` where the tokenizer's model or pre-tokenizer is not covered, `UserError` where its arrays are
    not sound.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model not in _MODELS:
        found = f"tokenizer model {model!r} is not covered" if model else "no tokenizer.ggml.model in the metadata"
        raise Unsupported(f"{source}: {found}; expected one of {', '.join(_MODELS)}, use another model")
    vocab = Vocab(metadata, source)
    if model == "llama":
        return SPMTokenizer(vocab)
    if model == "bert":
        return WordPieceTokenizer(vocab)
    merges = metadata.get("tokenizer.ggml.merges")
    if merges is None:
        raise vocab.error(f"no tokenizer.ggml.merges in the metadata; tokenizer model {model!r} needs them")
    if vocab.pre in _RAW_BPE:
        return RawBPETokenizer(vocab, list(merges), newline_tokens=vocab.pre != "sarvam-moe")
    splitter = pretokenize.pretokenizer(vocab.pre)
    if splitter is None:
        covered = ", ".join(sorted([*pretokenize.names(), *_RAW_BPE]))
        raise Unsupported(f"{source}: pre-tokenizer {vocab.pre!r} is not covered; expected one of {covered}")
    return BPETokenizer(vocab, list(merges), splitter)
