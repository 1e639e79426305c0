"""What a model takes, and what there is."""

import os

import mlx.core as mx

from mlxtrain.models.weights import Weights


def dense_bytes(weights: Weights, dtype: mx.Dtype) -> int:
    """Bytes of every matrix decoded to `dtype`."""
    return sum(t.weights for t in weights.gguf.tensors.values()) * dtype.size


def available_bytes() -> int:
    """Memory that may be taken now: the working set that Metal recommends less what is in use, a CUDA device's memory, or
    the pages that Linux says are available."""
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
