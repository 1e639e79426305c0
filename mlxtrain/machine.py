"""What a machine runs on: versions, device, limits, and the rate of its matrix products."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import Any

import mlx.core as mx
import numpy as np

import mlxtrain
from mlxtrain.engine.bake import compiles
from mlxtrain.engine.memory import available_bytes

_SIZE = 1024


def product_rate(repeats: int = 7) -> dict[str, float]:
    """GFLOP/s of a 1024x1024x1024 fp32 product through MLX and through NumPy, taken in turns; the best of each, since
    whatever else the machine does only takes away."""
    stream = np.random.default_rng(0)
    a, b = (stream.standard_normal((_SIZE, _SIZE), dtype=np.float32) for _ in range(2))
    xa, xb = mx.array(a), mx.array(b)
    mx.eval(xa @ xb)
    best = {"mlx": 0.0, "numpy": 0.0}
    for _ in range(repeats):
        for name, product in (("mlx", lambda: mx.eval(xa @ xb)), ("numpy", lambda: a @ b)):
            start = perf_counter()
            product()
            best[name] = max(best[name], 2 * _SIZE**3 / (perf_counter() - start) / 1e9)
    return {name: round(rate, 1) for name, rate in best.items()}


def describe() -> dict[str, Any]:
    """Everything `doctor` tells, as one JSON object. Sizes in bytes, rates in GFLOP/s."""
    device = mx.default_device()
    gpu = device.type == mx.DeviceType.gpu
    backend = ("metal" if mx.metal.is_available() else "cuda") if gpu else "cpu"
    return {
        "mlxtrain": mlxtrain.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "packages": {name: _version(name) for name in ("mlx", "numpy", "gguf", "jinja2", "click", "tqdm")},
        "backend": backend,
        "device": {k: v for k, v in mx.device_info().items() if isinstance(v, str | int | float)},
        "available_bytes": available_bytes(),
        "functions": "compiled" if compiles() else "eager",
        "blas": {
            "name": mlxtrain.blas_status.name,
            "fast": mlxtrain.blas_status.fast,
            "detail": mlxtrain.blas_status.detail,
        },
        "product_gflops": product_rate(),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
