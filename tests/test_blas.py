"""The fast BLAS on Linux: in place after a plain import, right, and gone without a trace where it cannot be had."""

import os
import platform
import subprocess
import sys

import pytest

from mlxtrain.blas import shim_image

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="MLX uses Accelerate on macOS")

RATE = """
import mlxtrain
from mlxtrain.machine import product_rate
rate = product_rate()
print(mlxtrain.blas_status.fast, rate["mlx"], rate["numpy"])
"""

RIGHT = """
import mlxtrain, mlx.core as mx, numpy as np
stream = np.random.default_rng(0)
for dtype, bound in ((np.float32, 1e-5), (np.float64, 1e-13)):
    with mx.stream(mx.cpu):
        for m, k, n in ((1, 1, 1), (1, 300, 7), (65, 33, 129), (200, 500, 3)):
            for ta in (False, True):
                for tb in (False, True):
                    a = stream.standard_normal((k, m) if ta else (m, k)).astype(dtype)
                    b = stream.standard_normal((n, k) if tb else (k, n)).astype(dtype)
                    mxd = mx.float32 if dtype == np.float32 else mx.float64
                    x, y = mx.array(a, mxd), mx.array(b, mxd)
                    found = np.array((x.T if ta else x) @ (y.T if tb else y))
                    expected = (a.T if ta else a) @ (b.T if tb else b)
                    # k products, each rounded, summed in another order
                    assert np.abs(found - expected).max() <= bound * k**0.5 * 4, (m, k, n, ta, tb, dtype)
print("right", mlxtrain.blas_status.fast)
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, timeout=300
    )


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no shim for this processor")
def test_products_reach_half_of_numpys_rate_in_the_same_process():
    result = run(RATE)
    fast, ours, theirs = result.stdout.split()
    # The reference BLAS reaches a fiftieth.
    assert fast == "True" and float(ours) > float(theirs) / 2, result.stdout + result.stderr


def test_products_of_all_layouts_are_right():
    result = run(RIGHT)
    assert result.stdout.split() == ["right", "True"], result.stderr


def test_it_can_be_left_out_and_says_so():
    code = "import mlxtrain; print(mlxtrain.blas_status)"
    assert "MLXTRAIN_BLAS=off" in run(code, MLXTRAIN_BLAS="off").stdout
    missing = run(code, MLXTRAIN_BLAS="/nowhere/libopenblas.so")
    assert "fast=False" in missing.stdout and "no fast BLAS" in missing.stdout and missing.returncode == 0
    late = run("import mlx.core, mlxtrain; print(mlxtrain.blas_status.detail)")
    assert "import mlxtrain first" in late.stdout


def _run_arm(
    image: bytes, symbol_at: int, registers: dict[str, int], stack: list[int]
) -> tuple[dict[str, int], list[int]]:
    unicorn = pytest.importorskip("unicorn", reason="the emulator `unicorn` is not installed")
    from unicorn import arm64_const as arm

    machine = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    base, stack_at, target = 0x100000, 0x800000, 0x400000
    machine.mem_map(base, 0x40000)
    machine.mem_map(target, 0x1000)
    machine.mem_map(stack_at, 0x1000)
    machine.mem_write(base, image)
    machine.mem_write(stack_at, b"".join((v & (2**64 - 1)).to_bytes(8, "little") for v in stack))
    machine.reg_write(arm.UC_ARM64_REG_SP, stack_at)
    for name, value in registers.items():
        machine.reg_write(getattr(arm, f"UC_ARM64_REG_{name.upper()}"), value)
    machine.emu_start(base + symbol_at, target)
    found = {n: machine.reg_read(getattr(arm, f"UC_ARM64_REG_{n.upper()}")) for n in registers}
    raw = machine.mem_read(stack_at, 8 * len(stack))
    return found, [int.from_bytes(raw[i : i + 8], "little", signed=True) for i in range(0, len(raw), 8)]


def test_arm64_trampoline_widens_the_integers_and_jumps():
    image = shim_image({"cblas_sgemm": 0x400000}, "aarch64")
    value = int.from_bytes(image[64 + 4 * 56 + 24 + 8 : 64 + 4 * 56 + 24 + 16], "little")  # st_value of symbol 1
    dirt = 0xDEADBEEF << 32  # the upper halves of int arguments are undefined
    registers = {"x3": dirt | 5, "x4": dirt | 6, "x5": dirt | 0xFFFFFFFF, "x6": 0x1234567890, "x7": dirt | 9}
    stack = [0x1111111111, dirt | 3, 0x2222222222, dirt | 4]
    found, after = _run_arm(image, value, registers, stack)
    assert found == {"x3": 5, "x4": 6, "x5": 2**64 - 1, "x6": 0x1234567890, "x7": 9}
    assert after == [0x1111111111, 3, 0x2222222222, 4]
