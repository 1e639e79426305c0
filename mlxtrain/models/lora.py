"""Low-rank adapters on the projections of a decoder (LoRA: Hu et al. 2021, arXiv 2106.09685).

Parameters carry the names of llama.cpp's adapter format: `blk.N.attn_q.weight.lora_a`, shape (rank, in), and `.lora_b`,
shape (out, rank), both fp32. The delta of a projection is `scale * B (A x)`.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlxtrain.errors import UserError
from mlxtrain.models.config import DecoderConfig
from mlxtrain.models.decoder import Adapter, no_adapter
from mlxtrain.models.weights import LayerSpec

TARGETS = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up"}
TARGETS["down"] = "ffn_down"


@dataclass(frozen=True, kw_only=True)
class Projection:
    """One adapted matrix of one layer. `rows` are the output rows that train; None: all of them."""

    layer: int
    name: str  # attn_q, attn_qkv, ...
    shape: tuple[int, int]
    rows: tuple[tuple[int, int], ...] | None = None

    @property
    def tensor(self) -> str:
        return f"blk.{self.layer}.{self.name}.weight"


def parse_targets(text: str) -> tuple[str, ...]:
    """`q,v` or `all` to canonical short names, in the order of the model."""
    asked = list(TARGETS) if text == "all" else [part.strip() for part in text.split(",")]
    unknown = [name for name in asked if name not in TARGETS]
    if unknown or not asked:
        raise UserError(f"--targets: {unknown[0]!r} is no projection; choose from {', '.join(TARGETS)} or all")
    return tuple(name for name in TARGETS if name in asked)


def parse_layers(text: str, count: int) -> tuple[int, ...]:
    """`all`, `last:8`, or numbers and ranges from 0 like `0-3,7`, to layer numbers."""
    fail = UserError(
        f"--layers {text!r}: expected 'all', 'last:N' or numbers and ranges within 0-{count - 1}, like 0-3,7"
    )
    try:
        if text == "all":
            return tuple(range(count))
        if text.startswith("last:"):
            last = int(text[5:])
            chosen = set(range(count - last, count)) if 0 < last <= count else set()
        else:
            ends = [[int(end) for end in part.split("-", 1)] for part in text.split(",")]
            if any(end >= count for pair in ends for end in pair):
                raise fail
            chosen = {layer for end in ends for layer in range(end[0], end[-1] + 1)}
    except ValueError:
        raise fail from None
    if not chosen or not chosen <= set(range(count)):
        raise fail
    return tuple(sorted(chosen))


def projections(
    config: DecoderConfig, specs: Sequence[LayerSpec], targets: Sequence[str], layers: Sequence[int]
) -> list[Projection]:
    """The matrices to adapt. Targets that live in one fused tensor share an adapter that trains their rows only."""
    found = []
    for layer in layers:
        shapes = {t.suffix.removesuffix(".weight"): t.shape for t in specs[layer].tensors if len(t.shape) == 2}
        rows: dict[str, list[tuple[int, int]]] = {}
        for target in targets:
            name, span = _locate(config, shapes, target)
            rows.setdefault(name, []).append(span)
        for name, spans in rows.items():
            merged = _merge(spans)
            whole = merged == ((0, shapes[name][0]),)
            found.append(Projection(layer=layer, name=name, shape=shapes[name], rows=None if whole else merged))
    return found


def _locate(config: DecoderConfig, shapes: Mapping[str, tuple[int, ...]], target: str) -> tuple[str, tuple[int, int]]:
    """The tensor that holds a target, and its rows there."""
    name = TARGETS[target]
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    if target in "qkv" and "attn_qkv" in shapes:
        start = {"q": 0, "k": q, "v": q + kv}[target]
        return "attn_qkv", (start, start + (q if target == "q" else kv))
    if target in ("gate", "up") and "ffn_gate" not in shapes:
        start = 0 if target == "gate" else config.ffn
        return "ffn_up", (start, start + config.ffn)
    return name, (0, shapes[name][0])


def _merge(spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)


def initial(projection: Projection, rank: int, seed: int) -> dict[str, mx.array]:
    """A normal with standard deviation 1/sqrt(in), so that A x has the scale of x; B zero, so that the model starts as
    served. Each tensor draws from its own stream, so the choice of targets does not change another's values."""
    out, inner = projection.shape
    stream = np.random.default_rng([seed, zlib.crc32(projection.tensor.encode())])
    a = stream.standard_normal((rank, inner), dtype=np.float32) / np.float32(math.sqrt(inner))
    return {f"{projection.tensor}.lora_a": mx.array(a), f"{projection.tensor}.lora_b": mx.zeros((out, rank))}


def row_mask(projection: Projection) -> mx.array | None:
    """1 where a row of B trains, 0 where it stays zero: (out, 1); None where all train."""
    if projection.rows is None:
        return None
    mask = np.zeros((projection.shape[0], 1), np.float32)
    for start, stop in projection.rows:
        mask[start:stop] = 1
    return mx.array(mask)


def adapter(
    params: Mapping[str, tuple[mx.array, mx.array]], scale: float, dropout: float = 0.0, key: mx.array | None = None
) -> Adapter:
    """The adapter of one layer, from (A, B) by projection name. Computes in the dtype of the activations.

    With `dropout`, elements of the adapter's input (never of the base's) are dropped by `key`, the same for the same
    key.
    """
    if not params:
        return no_adapter
    keys = {}
    if key is not None and dropout:
        drawn = mx.random.split(key, len(params))
        keys = {name: drawn[i] for i, name in enumerate(params)}

    def apply(name: str, x: mx.array, y: mx.array) -> mx.array:
        if name not in params:
            return y
        a, b = params[name]
        if name in keys:
            kept = mx.random.bernoulli(1 - dropout, x.shape, key=keys[name])
            x = mx.where(kept, x / (1 - dropout), 0).astype(x.dtype)
        return y + scale * ((x @ a.T.astype(x.dtype)) @ b.T.astype(x.dtype))

    return apply
