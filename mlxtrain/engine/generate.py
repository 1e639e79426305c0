"""Text from a model: a key/value cache, decoded weights kept where they fit, one token ahead of the reader."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlxtrain.engine.memory import fits_dense
from mlxtrain.engine.streamed import Params, StreamedDecoder
from mlxtrain.gguf.blocks import decode
from mlxtrain.models.decoder import block, logits
from mlxtrain.models.lora import Projection, adapter
from mlxtrain.models.weights import Weights

_GROWTH = 256  # positions by which a cache grows
_PREFILL = 512  # prompt tokens run at once


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """`temperature` 0 takes the likeliest token. `top_p` keeps the likeliest tokens that reach this probability
    together."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


class KVCache:
    """Keys and values of one layer, (B, K, S, E) each, in buffers that grow by whole steps."""

    def __init__(self) -> None:
        self.length = 0
        self._k: mx.array | None = None
        self._v: mx.array | None = None

    def update(self, k: mx.array, v: mx.array) -> tuple[mx.array, mx.array]:
        """Append T positions; returns all so far."""
        end = self.length + k.shape[2]
        if self._k is None or end > self._k.shape[2]:
            more = -(-(end - self.length) // _GROWTH) * _GROWTH
            grown = [mx.zeros((*k.shape[:2], more, k.shape[3]), k.dtype) for _ in range(2)]
            if self._k is None:
                self._k, self._v = grown
            else:
                self._k = mx.concatenate([self._k[:, :, : self.length], grown[0]], axis=2)
                self._v = mx.concatenate([self._v[:, :, : self.length], grown[1]], axis=2)
        self._k[:, :, self.length : end] = k
        self._v[:, :, self.length : end] = v
        self.length = end
        return self._k[:, :, :end], self._v[:, :, :end]


class Generator:
    """A model with an optional adapter, ready to continue token sequences. Weights are decoded once where they fit, and
    otherwise layer by layer for each token."""

    def __init__(
        self,
        weights: Weights,
        projections: Sequence[Projection] = (),
        params: Params | None = None,
        *,
        scale: float = 1.0,
        dtype: mx.Dtype = mx.float32,
    ):
        self.decoder = StreamedDecoder(
            weights, projections, scale=scale, dtype=dtype, keep=fits_dense(weights, dtype), compiled=False
        )
        self.params = params or {}
        self._embedding = weights.blocks("token_embd.weight") if self.decoder.keep else None

    def _embed(self, ids: mx.array) -> mx.array:
        d = self.decoder
        if self._embedding is None:
            return d.embed(np.array(ids))
        rows = decode(self._embedding[ids], d.weights.type_of("token_embd.weight"))  # only these, and exactly
        return (rows * d.config.embedding_scale).astype(d.dtype)

    def next_logits(self, ids: mx.array, caches: list[KVCache]) -> mx.array:
        """fp32 logits (B, vocab) of the token after `ids` (B, T), which follow what the caches hold."""
        d, start = self.decoder, caches[0].length
        ropes = d.rope_tables(mx.arange(start, start + ids.shape[1])[None])
        x = self._embed(ids)
        for layer, cache in enumerate(caches):
            spec = d.weights.specs[layer]
            dense = d.layer_weights(layer) if d.keep else spec.decode(d.layer_weights(layer), d.dtype)
            change = adapter(d.layer_params(self.params, layer), d.scale)
            x = block(d.config, spec, x, dense, ropes[spec.rope], change, cache)
            if not d.keep:
                mx.eval(x)
        return logits(d.config, x[:, -1], *d.head())

    def tokens(self, prompt: Sequence[int], sampling: Sampling) -> Iterator[int]:
        """Token ids after `prompt` (at least one token), without end. Deterministic for a seed."""
        caches = [KVCache() for _ in range(self.decoder.config.layers)]
        ids = mx.array(np.array(prompt, np.int32))[None]
        for start in range(0, len(prompt) - 1, _PREFILL):
            part = ids[:, start : min(start + _PREFILL, len(prompt) - 1)]
            mx.eval(self.next_logits(part, caches))
        key, now = mx.random.split(mx.random.key(sampling.seed))
        token = self._sample(self.next_logits(ids[:, -1:], caches), sampling, now)
        try:
            while True:
                key, now = mx.random.split(key)
                # The next token is under way before this one is read.
                following = self._sample(self.next_logits(token[:, None], caches), sampling, now)
                mx.async_eval(following)
                yield token.item()
                token = following
        finally:
            mx.synchronize()  # a process that ends while MLX computes may crash

    @staticmethod
    def _sample(z: mx.array, sampling: Sampling, key: mx.array) -> mx.array:
        if sampling.temperature <= 0:
            return mx.argmax(z, axis=-1)
        z = z / sampling.temperature
        if sampling.top_p < 1:
            order = mx.argsort(-z, axis=-1)
            ranked = mx.take_along_axis(z, order, axis=-1)
            p = mx.softmax(ranked, axis=-1)
            outside = mx.cumsum(p, axis=-1) - p >= sampling.top_p  # always keeps the likeliest
            z = mx.put_along_axis(z, order, mx.where(outside, -mx.inf, ranked), axis=-1)
        return mx.random.categorical(z, axis=-1, key=key)
