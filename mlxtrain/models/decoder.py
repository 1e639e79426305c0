"""One pre-norm decoder block for every supported architecture, as pure functions of arrays.

Shapes: B rows, T tokens, D hidden, H heads, K key/value heads, E head dimension. Activations are in the compute dtype;
norms, rotation and softmax run in fp32.
"""

from collections.abc import Mapping
from typing import Protocol

import mlx.core as mx

from mlxtrain.models.config import DecoderConfig
from mlxtrain.models.rope import rotate
from mlxtrain.models.weights import LayerSpec

Tables = tuple[mx.array, mx.array]


class Adapter(Protocol):
    """Adds its contribution to a projection: `adapter(name, x, y)` returns y + delta(x)."""

    def __call__(self, name: str, x: mx.array, y: mx.array) -> mx.array: ...


class KeyValues(Protocol):
    """A cache of keys and values: takes the new ones, returns all that the queries may see."""

    def update(self, k: mx.array, v: mx.array) -> tuple[mx.array, mx.array]: ...


def no_adapter(name: str, x: mx.array, y: mx.array) -> mx.array:
    return y


def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    # An fp32 weight promotes the result; the product is rounded once, on the way back.
    return mx.fast.rms_norm(x, weight, eps).astype(x.dtype)


def _linear(x: mx.array, w: Mapping[str, mx.array], name: str, adapter: Adapter) -> mx.array:
    y = adapter(name, x, x @ w[f"{name}.weight"].T)
    bias = w.get(f"{name}.bias")
    return y if bias is None else y + bias.astype(y.dtype)


def attend(q_BHTE, k_BKSE, v_BKSE, scale: float, window: int | None, softcap: float) -> mx.array:
    """Causal attention of the last T of S positions, over at most `window` of them (itself included)."""
    T, S = q_BHTE.shape[2], k_BKSE.shape[2]
    if window is not None and window < S:
        rows, columns = mx.arange(S - T, S)[:, None], mx.arange(S)[None]
        mask = (columns <= rows) & (columns > rows - window)
    else:
        mask = "causal" if T > 1 else None
    if not softcap:
        return mx.fast.scaled_dot_product_attention(q_BHTE, k_BKSE, v_BKSE, scale=scale, mask=mask)
    if mask == "causal":
        mask = mx.arange(S)[None] <= mx.arange(S - T, S)[:, None]
    B, H, _, E = q_BHTE.shape
    K = k_BKSE.shape[1]
    q = (q_BHTE * scale).reshape(B, K, H // K, T, E)
    scores = (q @ k_BKSE[:, :, None].swapaxes(-1, -2)).astype(mx.float32)
    scores = softcap * mx.tanh(scores / softcap)
    if mask is not None:
        scores = mx.where(mask, scores, -mx.inf)
    weights = mx.softmax(scores, axis=-1).astype(q_BHTE.dtype)
    return (weights @ v_BKSE[:, :, None]).reshape(B, H, T, E)


def _attention(config, spec, x_BTD, w, table: Tables, adapter: Adapter, cache: KeyValues | None) -> mx.array:
    B, T, _ = x_BTD.shape
    H, K, E = config.heads, config.kv_heads, config.head_dim
    if spec.has("attn_qkv.weight"):
        q, k, v = mx.split(_linear(x_BTD, w, "attn_qkv", adapter), [H * E, (H + K) * E], axis=-1)
    else:
        q, k, v = (_linear(x_BTD, w, name, adapter) for name in ("attn_q", "attn_k", "attn_v"))
    q, k, v = (y.reshape(B, T, -1, E) for y in (q, k, v))
    if config.qk_norm:
        q = rms_norm(q, w["attn_q_norm.weight"], config.norm_eps)
        k = rms_norm(k, w["attn_k_norm.weight"], config.norm_eps)
    q, k, v = (y.swapaxes(1, 2) for y in (q, k, v))
    traditional = config.ropes[spec.rope].traditional
    q, k = rotate(q, *table, traditional), rotate(k, *table, traditional)
    if cache is not None:
        k, v = cache.update(k, v)
    out = attend(q, k, v, config.attention_scale, spec.window, config.attention_softcap)
    return _linear(out.swapaxes(1, 2).reshape(B, T, H * E), w, "attn_output", adapter)


def _gelu(x: mx.array) -> mx.array:
    """GELU, tanh approximation (Hendrycks and Gimpel 2016, arXiv 1606.08415)."""
    return 0.5 * x * (1 + mx.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def _feed_forward(config, spec, x, w, adapter: Adapter) -> mx.array:
    if spec.has("ffn_gate.weight"):
        gate, up = _linear(x, w, "ffn_gate", adapter), _linear(x, w, "ffn_up", adapter)
    else:
        gate, up = mx.split(_linear(x, w, "ffn_up", adapter), 2, axis=-1)
    gate = gate * mx.sigmoid(gate) if config.activation == "silu" else _gelu(gate)
    return _linear(gate * up, w, "ffn_down", adapter)


def block(
    config: DecoderConfig,
    spec: LayerSpec,
    x_BTD: mx.array,
    w: Mapping[str, mx.array],
    table: Tables,
    adapter: Adapter = no_adapter,
    cache: KeyValues | None = None,
) -> mx.array:
    """One layer with dense weights `w` (by name within the layer): (B, T, D) to (B, T, D)."""
    h = rms_norm(x_BTD, w["attn_norm.weight"], config.norm_eps)
    h = _attention(config, spec, h, w, table, adapter, cache)
    if config.post_norms:
        h = rms_norm(h, w["post_attention_norm.weight"], config.norm_eps)
    x = x_BTD + h
    h = rms_norm(x, w["ffn_norm.weight"], config.norm_eps)
    h = _feed_forward(config, spec, h, w, adapter)
    if config.post_norms:
        h = rms_norm(h, w["post_ffw_norm.weight"], config.norm_eps)
    return x + h


def logits(config: DecoderConfig, h: mx.array, norm: mx.array, head: mx.array, bias: mx.array | None) -> mx.array:
    """Final norm, output product and soft cap: (..., D) to fp32 (..., vocab)."""
    z = (rms_norm(h, norm, config.norm_eps) @ head.T).astype(mx.float32)
    if bias is not None:
        z = z + bias
    return config.final_softcap * mx.tanh(z / config.final_softcap) if config.final_softcap else z
