"""Rotary position embedding as llama.cpp computes it: linear, YaRN and LongRoPE scaling, per-dimension frequency
factors.

RoPE: Su et al. 2021 (arXiv 2104.09864). YaRN: Peng et al. 2023 (arXiv 2309.00071). The ramp and the magnitude are those
of ggml's `rope_yarn`, since the adapter is served there.
"""

import math
from dataclasses import dataclass

import mlx.core as mx
import numpy as np


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """`dims` of each head rotate. `traditional` pairs neighbours (2i, 2i+1); otherwise i pairs with i + dims/2."""

    dims: int
    base: float
    traditional: bool
    scaling: str = "none"  # none, linear, yarn, longrope
    factor: float = 1.0
    original_context: int = 0
    magnitude: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


def inverse_frequencies(config: RopeConfig, factors: np.ndarray | None = None) -> tuple[np.ndarray, float]:
    """Radians per position for each rotating pair, float32 (dims/2,), and the magnitude cos and sin are scaled by.

    `factors` divide the unscaled frequencies (Llama 3's `rope_freqs`, LongRoPE's short or long factors).
    """
    half = config.dims // 2
    extrapolated = config.base ** (-np.arange(half, dtype=np.float64) * 2 / config.dims)
    if factors is not None:
        extrapolated = extrapolated / factors.astype(np.float64)
    interpolated = extrapolated / config.factor
    if config.scaling != "yarn":
        return interpolated.astype(np.float32), config.magnitude

    def dimension(rotations: float) -> float:  # where a dimension makes this many rotations over the original context
        return config.dims * math.log(config.original_context / (rotations * 2 * math.pi)) / (2 * math.log(config.base))

    low = max(0.0, math.floor(dimension(config.beta_fast)))
    high = min(config.dims - 1.0, math.ceil(dimension(config.beta_slow)))
    keep = 1 - np.clip((np.arange(half) - low) / max(0.001, high - low), 0, 1)
    mixed = interpolated * (1 - keep) + extrapolated * keep
    return mixed.astype(np.float32), config.magnitude * (1 + 0.1 * math.log(config.factor))


def tables(positions_BT: mx.array, frequencies: mx.array, magnitude: float) -> tuple[mx.array, mx.array]:
    """cos and sin of every angle, float32, each (B, 1, T, dims/2)."""
    angles = positions_BT.astype(mx.float32)[:, None, :, None] * frequencies
    return mx.cos(angles) * magnitude, mx.sin(angles) * magnitude


def rotate(x_BHTD: mx.array, cos: mx.array, sin: mx.array, traditional: bool) -> mx.array:
    """Rotate the first dims of each head by the angles of its position, in fp32; the rest passes."""
    half = cos.shape[-1]
    x, rest = x_BHTD[..., : 2 * half].astype(mx.float32), x_BHTD[..., 2 * half :]
    if traditional:
        pairs = x.reshape(*x.shape[:-1], half, 2)
        a, b = pairs[..., 0], pairs[..., 1]
        turned = mx.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)
    else:
        a, b = x[..., :half], x[..., half:]
        turned = mx.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
    turned = turned.astype(x_BHTD.dtype)
    return mx.concatenate([turned, rest], axis=-1) if rest.shape[-1] else turned
