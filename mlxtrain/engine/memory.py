"""What a model takes, and what there is."""

import math
import os
from collections.abc import Sequence

import mlx.core as mx

from mlxtrain.engine.streamed import HEAD_ROWS
from mlxtrain.models.lora import Projection
from mlxtrain.models.weights import Weights


def dense_bytes(weights: Weights, dtype: mx.Dtype) -> int:
    """Bytes of every matrix decoded to `dtype`."""
    return sum(t.weights for t in weights.gguf.tensors.values()) * dtype.size


def available_bytes() -> int:
    """Memory that may be taken now: the working set that Metal recommends less what is in use, a CUDA device's memory,
    or the pages that Linux says are available."""
    if mx.default_device().type == mx.DeviceType.gpu:
        info = mx.device_info()
        limit = info.get("max_recommended_working_set_size") or info.get("total_memory") or info["memory_size"]
        return int(limit) - mx.get_active_memory()
    try:
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def fits_dense(weights: Weights, dtype: mx.Dtype) -> bool:
    """Whether the decoded weights may be kept: they take at most 70 % of what is available."""
    return dense_bytes(weights, dtype) < 0.7 * available_bytes()


def lora_memory(
    weights: Weights, projections: Sequence[Projection], *, batch_size: int, seq_len: int, rank: int, dtype: mx.Dtype
) -> dict[str, int]:
    """What a LoRA step takes, layer by layer: trainable parameters, bytes of the adapter file, and the peak in bytes.

    The peak is that of the larger of two moments, on top of adapters, moments, gradients and the kept inputs of the
    layers: the output head with a chunk of logits, or the backward pass of one layer. docs/engine.md compares it with
    measurements.
    """
    c, size, tokens = weights.config, dtype.size, batch_size * seq_len
    trainable = sum(rank * sum(p.shape) for p in projections)
    always = 16 * trainable + (c.layers + 1) * tokens * c.hidden * size
    # While the head is decoded: blocks, quants as fp32, and their product with the scales. Later: the dense head with a
    # chunk's logits, their exponentials, the gradient, and one temporary of the same size.
    rows, blocks = min(HEAD_ROWS, tokens), weights.gguf.tensors[weights.head_name].nbytes
    head = max(blocks + 8 * c.vocab * c.hidden, c.vocab * c.hidden * size + 4 * rows * c.vocab * 4)
    largest = max(sum(math.prod(t.shape) for t in spec.tensors) for spec in weights.specs)
    per_token = 12 * c.hidden + 6 * c.ffn + 4 * (c.heads + 2 * c.kv_heads) * c.head_dim
    scores = 4 * batch_size * c.heads * seq_len * seq_len * 4
    layer = largest * size + tokens * per_token * size + scores
    return {"trainable": trainable, "adapter_bytes": 4 * trainable, "peak_bytes": always + max(head, layer)}
