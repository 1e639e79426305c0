"""A base as it is served: with or without an adapter, frozen."""

from collections.abc import Callable
from pathlib import Path

from mlxtrain.base import Base
from mlxtrain.engine.generate import Generator
from mlxtrain.engine.memory import fits_dense
from mlxtrain.engine.streamed import Params, StreamedDecoder
from mlxtrain.export.gguf_adapter import read_adapter
from mlxtrain.models.weights import Weights
from mlxtrain.recipes.lora import compute_dtype


def _parts(base: Base, adapter: Path | None, seq_len: int | None, warn: Callable[[str], None]):
    weights = Weights(base.gguf, base.decoder(seq_len))
    loaded = read_adapter(adapter, base.gguf) if adapter else None
    if loaded and loaded.warning:
        warn(loaded.warning)
    return (
        weights,
        loaded.projections if loaded else [],
        loaded.params if loaded else {},
        loaded.scale if loaded else 1.0,
    )


def served_generator(
    base: Base, adapter: Path | None, dtype: str, length: int, warn: Callable[[str], None]
) -> Generator:
    """Ready to continue token sequences up to `length` tokens, the prompt included, or the model's context."""
    weights, projections, params, scale = _parts(base, adapter, min(length, base.decoder().context), warn)
    return Generator(weights, projections, params, scale=scale, dtype=compute_dtype(dtype))


def served_decoder(
    base: Base, adapter: Path | None, dtype: str, seq_len: int, warn: Callable[[str], None]
) -> tuple[StreamedDecoder, Params]:
    """Ready to score batches; decoded weights are kept where they fit."""
    weights, projections, params, scale = _parts(base, adapter, seq_len, warn)
    kind = compute_dtype(dtype)
    decoder = StreamedDecoder(weights, projections, scale=scale, dtype=kind, keep=fits_dense(weights, kind))
    return decoder, params
