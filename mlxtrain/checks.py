"""`doctor --check`: the proofs that hold on this machine's backend, run there. Each returns what it measured."""

import dataclasses
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import mlx.core as mx
import numpy as np

from mlxtrain.base import Base, embedded
from mlxtrain.config import LoraConfig
from mlxtrain.data.batches import collate
from mlxtrain.data.examples import Encoder, Report, load_examples, windows
from mlxtrain.engine.adamw import hyper_row
from mlxtrain.engine.batch import Batch
from mlxtrain.gguf.blocks import DECODABLE, decode
from mlxtrain.gguf.mapped import MappedTensors, blocks
from mlxtrain.gguf.reader import Tensor
from mlxtrain.gguf.types import BY_NAME
from mlxtrain.recipes.lora import LoRA

# fp32 sums in another order: about sqrt(n) roundings of 6e-8 over n of some thousand terms, through a few layers.
_TOLERANCE = 1e-4
_BLOCKS = 512


@dataclass(frozen=True, kw_only=True)
class Check:
    """One proof: its name, whether it held (None: it could not be run here), and what was measured."""

    name: str
    passed: bool | None
    detail: dict[str, Any]
    seconds: float


@contextmanager
def _on(device: mx.DeviceType) -> Iterator[None]:
    before = mx.default_device()
    mx.set_default_device(mx.Device(device))
    try:
        yield
    finally:
        mx.set_default_device(before)


def check_codecs() -> tuple[bool, dict[str, Any]]:
    """Every codec against `gguf.quants`, bit for bit in fp32, on random blocks. Where the reference is NaN (a random
    scale can be), ours must be NaN too; its payload is nobody's."""
    from gguf import GGMLQuantizationType, quants

    stream, wrong = np.random.default_rng(0), {}
    for name in sorted(DECODABLE):
        raw = stream.integers(0, 256, (_BLOCKS, BY_NAME[name].nbytes), dtype=np.uint8)
        with np.errstate(all="ignore"):
            expected = quants.dequantize(raw, GGMLQuantizationType[name]).astype(np.float32)
        found = np.array(decode(mx.array(raw), name))
        nan = np.isnan(expected)
        differ = (found.view(np.uint32) != expected.view(np.uint32)) & ~nan | (nan & ~np.isnan(found))
        if differ.any():
            wrong[name] = {
                "weights": int(differ.sum()),
                "of": int(differ.size),
                "largest": float(np.nanmax(np.abs(expected[differ]))),
            }
    return not wrong, {"codecs": len(DECODABLE), "differing": wrong}


def check_mapped() -> tuple[bool, dict[str, Any]]:
    """Every tensor of the embedded model, mapped, against a copy of its bytes; how many are the file's own pages."""
    base = Base(embedded("default.gguf"))
    mapped = MappedTensors(base.gguf.tensors)
    arrays = {name: mapped[name] for name in base.gguf.tensors}
    wrong = [n for n, a in arrays.items() if not np.array_equal(np.array(a), base.gguf.tensors[n].raw)]
    adopted = sum(map(_adopted, base.gguf.tensors.values()))
    whole = adopted == len(arrays) or not mx.metal.is_available()
    return not wrong and whole, {"tensors": len(arrays), "differing": wrong, "without_a_copy": adopted}


def _adopted(tensor: Tensor) -> bool:
    try:
        mx.eval(blocks(tensor, copy=False))
    except ValueError:
        return False
    return True


def _steps(compiled: bool | None, steps: int = 3, **options: Any) -> tuple[list[float], dict[str, np.ndarray], float]:
    """Losses and adapters of a short run on the embedded model, and the seconds its last step took."""
    base = Base(embedded("default.gguf"))
    config = dataclasses.replace(LoraConfig(), targets="all", seq_len=96, dtype="f32", **options)
    recipe = LoRA(config, compiled=compiled)
    recipe.realize(base.gguf)
    recipe.build()
    batch, losses, seconds = _batch(base), [], 0.0
    for step in range(1, steps + 1):
        start = perf_counter()
        losses.append(recipe.step(batch, hyper_row(1e-3, step), step == 1).loss)
        seconds = perf_counter() - start
    return losses, {name: np.array(p) for name, p in recipe.state.params.items()}, seconds


def _batch(base: Base) -> Batch:
    examples, _ = load_examples(embedded("default_chats.jsonl"), Encoder(base.tokenizer, base.template))
    return collate(windows(examples[:4], 96, Report()))


def _compare(a: tuple, b: tuple) -> tuple[bool, dict[str, Any]]:
    """Losses relatively, adapters by the norm of their difference over their norm."""
    loss = max(abs(x - y) / abs(y) for x, y in zip(a[0], b[0], strict=True))
    weight = max(float(np.linalg.norm(a[1][n] - w) / max(1e-30, np.linalg.norm(w))) for n, w in b[1].items())
    detail = {
        "loss": loss,
        "adapters": weight,
        "tolerance": _TOLERANCE,
        "seconds_a_step": [round(a[2], 4), round(b[2], 4)],
    }
    # AdamW divides by the root of the second moment, so where a gradient is near eps its rounding shows whole.
    return loss < _TOLERANCE and weight < 100 * _TOLERANCE, detail


def check_compiled() -> tuple[bool | None, dict[str, Any]]:
    """Three LoRA steps in compiled form against the same in eager form."""
    if mx.default_device().type == mx.DeviceType.cpu and not _has_compiler():
        return None, {"reason": "MLX compiles CPU kernels with a C++ compiler, and there is none"}
    return _compare(_steps(True), _steps(False))


def _has_compiler() -> bool:
    found = shutil.which("g++") or shutil.which("c++")
    return bool(found) and subprocess.run([found, "--version"], capture_output=True).returncode == 0


def check_step_against_cpu() -> tuple[bool | None, dict[str, Any]]:
    """Three LoRA steps on this device against the same on the CPU, in fp32."""
    if mx.default_device().type == mx.DeviceType.cpu:
        return None, {"reason": "this device is the CPU"}
    here = _steps(None)
    with _on(mx.DeviceType.cpu):
        there = _steps(None)
    return _compare(here, there)


def check_learning() -> tuple[bool, dict[str, Any]]:
    """Twenty steps on one batch in the dtype that is the default here: the loss has to fall by half."""
    base = Base(embedded("default.gguf"))
    recipe = LoRA(dataclasses.replace(LoraConfig(), targets="all", seq_len=96))
    recipe.realize(base.gguf)
    recipe.build()
    batch = _batch(base)
    losses = [recipe.step(batch, hyper_row(1e-2, step), step == 1).loss for step in range(1, 21)]
    return losses[-1] < losses[0] / 2, {"first": losses[0], "last": losses[-1]}


CHECKS: dict[str, Callable[[], tuple[bool | None, dict[str, Any]]]] = {
    "codecs equal gguf.quants bit for bit": check_codecs,
    "mapped tensors equal copied ones": check_mapped,
    "a compiled step equals an eager one": check_compiled,
    "a step here equals a step on the CPU": check_step_against_cpu,
    "training learns": check_learning,
}


def run_checks() -> Iterator[Check]:
    """Run every proof. One that raises has not held; what it raised is its detail."""
    for name, check in CHECKS.items():
        start = perf_counter()
        try:
            passed, detail = check()
        except Exception as error:  # whatever a backend throws is the finding
            passed, detail = False, {"error": f"{type(error).__name__}: {error}"}
        yield Check(name=name, passed=passed, detail=detail, seconds=round(perf_counter() - start, 2))
