"""What is in a GGUF, whether a run on it is possible, and what it would cost."""

import contextlib
import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxtrain.base import Base
from mlxtrain.config import LoraConfig
from mlxtrain.engine.memory import lora_memory
from mlxtrain.errors import Unsupported, UserError
from mlxtrain.gguf.blocks import DECODABLE, decode
from mlxtrain.gguf.reader import GGUF
from mlxtrain.models.config import decoder_config
from mlxtrain.models.lora import parse_layers, parse_targets, projections
from mlxtrain.models.weights import Weights
from mlxtrain.recipes.lora import compute_dtype

_DECODED_AT_ONCE = 1 << 24  # weights


def inspect(path: Path, options: LoraConfig, *, metadata: bool = False, weights: bool = False) -> dict[str, Any]:
    """Everything `inspect` tells, as one JSON object; sizes in bytes. `weights` decodes every tensor as well.

    UserError for a file that is not sound: damaged, or with tensors or vocabulary that do not fit its own metadata.
    """
    base = Base(path)
    found = _contents(base.gguf)
    if weights:
        _check_weights(base.gguf)
    if base.gguf.key("general.type", str, "model") == "adapter":
        found["adapter"] = {k: v for k, v in _plain(base.gguf).items() if k.startswith(("adapter.", "mlxtrain."))}
    elif base.gguf.tensors:
        found["tokenizer"], reasons = _tokenizer(base)
        found["run"], more = _run(base, options)
        found["trainable"] = not reasons + more
        if reasons + more:
            found["reasons"] = reasons + more
    if metadata:
        found["metadata"] = _plain(base.gguf)
    return found


def _contents(gguf: GGUF) -> dict[str, Any]:
    types: dict[str, dict[str, int]] = {}
    for kind, count in Counter(t.type.name for t in gguf.tensors.values()).most_common():
        of_kind = [t for t in gguf.tensors.values() if t.type.name == kind]
        types[kind] = {
            "tensors": count,
            "weights": sum(t.weights for t in of_kind),
            "bytes": sum(t.nbytes for t in of_kind),
        }
    return {
        "files": [str(p) for p in gguf.paths],
        "bytes": gguf.nbytes,
        "version": gguf.version,
        "name": gguf.key("general.name", str, None),
        "license": gguf.key("general.license", str, None),
        "architecture": gguf.key("general.architecture", str, None),
        "tensors": len(gguf.tensors),
        "parameters": sum(t.weights for t in gguf.tensors.values()),
        "types": types,
        "sound": True,
    }


def _plain(gguf: GGUF) -> dict[str, Any]:
    """Metadata without the contents of arrays."""
    return {k: gguf.metadata[k] if (n := gguf.metadata.length(k)) is None else f"[{n} items]" for k in gguf.metadata}


def _tokenizer(base: Base) -> tuple[dict[str, Any], list[str]]:
    try:
        tokenizer = base.tokenizer
        found = {
            "model": tokenizer.model,
            "pre": tokenizer.pre,
            "vocab": tokenizer.vocab_size,
            "chat_template": base.template is not None,
        }
    except Unsupported as error:
        return {"model": base.gguf.metadata.get("tokenizer.ggml.model")}, [str(error)]
    return found, []


def _check_weights(gguf: GGUF) -> None:
    """UserError for the first tensor with a weight that is NaN or infinite. Types without a codec are passed over."""
    for tensor in gguf.tensors.values():
        if tensor.type.name not in DECODABLE:
            continue
        rows = max(1, _DECODED_AT_ONCE // tensor.shape[-1])
        for start in range(0, len(tensor.raw), rows):
            part = decode(mx.array(tensor.raw[start : start + rows]), tensor.type.name)
            if not mx.all(mx.isfinite(part)).item():
                raise UserError(
                    f"{tensor.path}: tensor {tensor.name!r} has weights that are not finite, in rows {start} to "
                    f"{start + rows}; fetch the file again or convert the model again"
                )


def _run(base: Base, options: LoraConfig) -> tuple[dict[str, Any] | None, list[str]]:
    """Shape of the model and cost of a LoRA run with these options."""
    try:
        config = decoder_config(base.gguf, options.seq_len)
        weights = Weights(base.gguf, config)
    except Unsupported as error:
        return None, [str(error)]
    with contextlib.suppress(Unsupported):  # the tokenizer, which has been told already
        base.decoder(options.seq_len)
    adapted = projections(
        config, weights.specs, parse_targets(options.targets), parse_layers(options.layers, config.layers)
    )
    seq_len = options.seq_len or min(512, config.context)
    memory = lora_memory(
        weights,
        adapted,
        batch_size=options.batch_size,
        seq_len=seq_len,
        rank=options.rank,
        dtype=compute_dtype(options.dtype),
    )
    shape = dataclasses.asdict(config)
    kept = ("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab", "context", "tied")
    return {
        **{name: shape[name] for name in kept},
        "sliding_layers": sum(window is not None for window in config.windows),
        "options": {
            "batch_size": options.batch_size,
            "seq_len": seq_len,
            "targets": options.targets,
            "rank": options.rank,
        },
        **memory,
    }, []
