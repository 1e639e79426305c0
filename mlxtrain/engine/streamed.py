"""The decoder run layer by layer: one layer dense at a time, forward and backward.

Each layer's forward, and its gradient, is a baked function of its own that takes the mapped blocks and decodes them
inside; layers of one kind share it. Only the inputs of the layers are kept for the backward pass, which decodes again
and recomputes the layer. So memory does not grow with the model's depth beyond those inputs, nor compile time with
depth.
"""

from collections.abc import Sequence
from functools import partial

import mlx.core as mx
import numpy as np

from mlxtrain.engine.bake import bake
from mlxtrain.engine.batch import Batch
from mlxtrain.engine.labels import UNLABELLED
from mlxtrain.engine.losses import head_loss, head_loss_and_grad
from mlxtrain.models.decoder import block, logits
from mlxtrain.models.lora import Projection, adapter, row_mask
from mlxtrain.models.rope import inverse_frequencies, tables
from mlxtrain.models.weights import LayerSpec, Weights

Params = dict[str, mx.array]
HEAD_ROWS = 256  # rows whose logits exist at once

# What selects a layer's code: how it is stored, and which of its projections are adapted.
_Kind = tuple[LayerSpec, tuple[str, ...]]


class StreamedDecoder:
    """A frozen base and its adapters. `dtype` is that of activations and decoded matrices.

    With `keep=True` decoded weights stay in memory, for models that fit and are only run forward.
    """

    def __init__(
        self,
        weights: Weights,
        projections: Sequence[Projection] = (),
        *,
        scale: float = 1.0,
        dropout: float = 0.0,
        dtype: mx.Dtype = mx.float32,
        keep: bool = False,
        compiled: bool | None = None,
    ):
        self.weights, self.config, self.dtype = weights, weights.config, dtype
        self.scale, self.dropout, self.keep, self._compiled = scale, dropout, keep, compiled
        self.adapted: dict[int, list[Projection]] = {}
        for p in projections:
            self.adapted.setdefault(p.layer, []).append(p)
        self._masks = {p.tensor: mask for p in projections if (mask := row_mask(p)) is not None}
        self._baked: dict[tuple, object] = {}
        self._kept: dict[int, dict[str, mx.array]] = {}
        self._kept_head: tuple | None = None
        self._norm = weights.dense("output_norm.weight")
        self._bias = weights.dense("output.bias") if "output.bias" in weights.gguf.tensors else None
        factors = np.array(weights.dense(self.config.rope_factors)) if self.config.rope_factors else None
        self._ropes = []
        for index, rope in enumerate(self.config.ropes):
            frequencies, magnitude = inverse_frequencies(rope, factors if index == 0 else None)
            self._ropes.append((mx.array(frequencies), magnitude))

    # ---- what each layer is given -------------------------------------------------------------------------------

    def _kind(self, layer: int) -> _Kind:
        return self.weights.specs[layer], tuple(p.name for p in self.adapted.get(layer, ()))

    def layer_weights(self, layer: int) -> dict[str, mx.array]:
        """Blocks of a layer, or with `keep` its dense weights."""
        if not self.keep:
            return self.weights.layer(layer)
        if layer not in self._kept:
            self._kept[layer] = self.weights.specs[layer].decode(self.weights.layer(layer), self.dtype)
            mx.eval(self._kept[layer])
        return self._kept[layer]

    def head(self) -> tuple[mx.array, mx.array, mx.array | None]:
        """Final norm, dense output matrix, and bias if there is one."""
        if self._kept_head is not None:
            return self._kept_head
        head = self._norm, self.weights.dense(self.weights.head_name, self.dtype), self._bias
        mx.eval(head[1])
        if self.keep:
            self._kept_head = head
        return head

    def layer_params(self, params: Params, layer: int) -> dict[str, tuple[mx.array, mx.array]]:
        """(A, B) of a layer's adapters, by projection name."""
        chosen = self.adapted.get(layer, ())
        return {p.name: (params[f"{p.tensor}.lora_a"], params[f"{p.tensor}.lora_b"]) for p in chosen}

    def embed(self, ids: np.ndarray) -> mx.array:
        """Input activations (B, T, D) of token ids (B, T)."""
        x = self.weights.embedding_rows(ids)
        return (x * self.config.embedding_scale).astype(self.dtype)

    def rope_tables(self, positions: mx.array) -> list[tuple[mx.array, mx.array]]:
        """cos and sin for each rotary table of the model, fp32 (B, 1, T, dims/2)."""
        return [tables(positions, frequencies, magnitude) for frequencies, magnitude in self._ropes]

    # ---- baked functions, one for each kind of layer ------------------------------------------------------------

    def _layer(self, kind: _Kind, x, params, given, table, key):
        spec, names = kind
        dense = given if self.keep else spec.decode(given, self.dtype)
        pairs = {n: params[n] for n in names}  # in this order, whatever a compiler made of the mapping
        return block(self.config, spec, x, dense, table, adapter(pairs, self.scale, self.dropout, key))

    def _forward(self, kind: _Kind):
        if ("forward", kind) not in self._baked:
            self._baked["forward", kind] = bake(partial(self._layer, kind), self._compiled)
        return self._baked["forward", kind]

    def _backward(self, kind: _Kind, lowest: bool):
        """(x, params, blocks, table, key, dy) to the gradients of A and B of each projection in order, and then dx. The
        lowest adapted layer needs no dx and gives none."""
        name = ("backward", kind, lowest)
        if name not in self._baked:
            spec, names = kind

            def backward(x, params, given, table, key, dy):
                dense = given if self.keep else spec.decode(given, self.dtype)

                def run(*primals):
                    pairs = {n: primals[2 * i : 2 * i + 2] for i, n in enumerate(names)}
                    change = adapter(pairs, self.scale, self.dropout, key)
                    return block(self.config, spec, x if lowest else primals[-1], dense, table, change)

                leaves = [leaf for n in names for leaf in params[n]]
                return mx.vjp(run, leaves if lowest else [*leaves, x], [dy])[1]

            self._baked[name] = bake(backward, self._compiled)
        return self._baked[name]

    def _head_function(self, function):
        if function not in self._baked:
            self._baked[function] = bake(partial(function, self.config), self._compiled)
        return self._baked[function]

    # ---- passes -------------------------------------------------------------------------------------------------

    def hidden(
        self, batch: Batch, params: Params, keys: mx.array | None = None, inputs: list | None = None
    ) -> mx.array:
        """Output of the last layer (B, T, D). `inputs`, if given, receives the input of every layer that has to be
        differentiated: those from the lowest adapted one up."""
        lowest = min(self.adapted, default=self.config.layers)
        x = self.embed(batch.ids)
        ropes = self.rope_tables(mx.array(batch.positions))
        for layer in range(self.config.layers):
            if inputs is not None:
                inputs.append(x if layer >= lowest else None)
            given, pairs = self.layer_weights(layer), self.layer_params(params, layer)
            key = None if keys is None else keys[layer]
            x = self._forward(self._kind(layer))(x, pairs, given, ropes[self.weights.specs[layer].rope], key)
            mx.eval(x)  # lets go of this layer's dense weights before the next is decoded
        return x

    def loss_sum(self, batch: Batch, params: Params) -> float:
        """Cross-entropy summed over the labelled tokens, in nats; no dropout."""
        h = self.hidden(batch, params)
        norm, head, bias = self.head()
        function = self._head_function(head_loss)
        flat, total = h.reshape(-1, self.config.hidden), 0.0
        for index, labels in _labelled_chunks(batch.labels):
            total += function(flat[mx.array(index)], mx.array(labels), norm, head, bias).item()
        return total

    def logits(self, batch: Batch, params: Params) -> mx.array:
        """fp32 logits (B, T, vocab) of every position: for checks and short texts, since nothing is chunked."""
        return logits(self.config, self.hidden(batch, params), *self.head())

    def loss_and_grads(self, batch: Batch, params: Params, keys: mx.array | None = None) -> tuple[mx.array, Params]:
        """Mean cross-entropy over the labelled tokens, fp32 scalar, and its gradient for every parameter."""
        inputs: list[mx.array | None] = []
        h = self.hidden(batch, params, keys, inputs)
        loss, dy = self._head_pass(h, batch)
        ropes = self.rope_tables(mx.array(batch.positions))
        lowest, grads = min(self.adapted), {}
        for layer in reversed(range(lowest, self.config.layers)):
            given, pairs = self.layer_weights(layer), self.layer_params(params, layer)
            backward = self._backward(self._kind(layer), layer == lowest)
            key = None if keys is None else keys[layer]
            table = ropes[self.weights.specs[layer].rope]
            pulled = backward(inputs[layer], pairs, given, table, key, dy)
            mx.eval(pulled)
            inputs[layer], dy = None, pulled[-1]
            for i, p in enumerate(self.adapted.get(layer, ())):
                mask = self._masks.get(p.tensor)
                grads[f"{p.tensor}.lora_a"] = pulled[2 * i]
                grads[f"{p.tensor}.lora_b"] = pulled[2 * i + 1] if mask is None else pulled[2 * i + 1] * mask
        return loss, {name: grads[name] for name in params}

    def _head_pass(self, h: mx.array, batch: Batch) -> tuple[mx.array, mx.array]:
        """The loss and its gradient at the last layer's output; only labelled rows reach the output matrix."""
        norm, head, bias = self.head()
        function = self._head_function(head_loss_and_grad)
        flat = h.reshape(-1, self.config.hidden)
        weight = mx.array(1 / max(1, batch.tokens), mx.float32)
        loss, dh = mx.array(0.0), mx.zeros_like(flat)
        for index, labels in _labelled_chunks(batch.labels):
            where = mx.array(index)
            part, d = function(flat[where], mx.array(labels), norm, head, bias, weight)
            loss, dh = loss + part, dh.at[where].add(d)
            mx.eval(loss, dh)
        return loss, dh.reshape(h.shape)


def _labelled_chunks(labels_BT: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Flat positions and labels of the labelled rows, in chunks of at most HEAD_ROWS. A chunk is filled up to a
    multiple of 32 with unlabelled rows, so that few shapes occur."""
    flat = labels_BT.reshape(-1)
    index = np.flatnonzero(flat != UNLABELLED)
    chunks = []
    for start in range(0, len(index), HEAD_ROWS):
        part = index[start : start + HEAD_ROWS]
        fill = -len(part) % 32
        chunk_labels = np.concatenate([flat[part], np.full(fill, UNLABELLED, flat.dtype)])
        chunks.append((np.concatenate([part, np.zeros(fill, part.dtype)]).astype(np.int32), chunk_labels))
    return chunks
