"""A fast BLAS for MLX on Linux, from the NumPy that is already installed.

The Linux wheel of MLX links the reference BLAS (1.5 GFLOP/s on two cores); NumPy's wheel carries an OpenBLAS (over
100), but with prefixed names and 64-bit integers. `use_numpy_blas` puts a `cblas_sgemm` and a `cblas_dgemm` into the
process's global symbol scope that widen the integers and jump to NumPy's. The dynamic linker finds them first when MLX
is imported afterwards. The shim is a shared object of one page, assembled here and loaded from memory: no compiler, no
file.

ELF layout: System V gABI, chapters 4 and 5. Calling conventions: System V x86-64 psABI 3.2.3, AAPCS64 6.8.2.
"""

import ctypes
import importlib.util
import os
import platform
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PAGE = 0x10000  # the largest page of any Linux this runs on (64 KiB, some arm64 kernels)


@dataclass(frozen=True, kw_only=True)
class BlasStatus:
    """Which BLAS the matrix products of MLX's CPU backend use, and why."""

    name: str
    fast: bool
    detail: str


def _trampoline(target: int, machine: str) -> bytes:
    """Machine code of gemm(order, ta, tb, int m, n, k, alpha, a, int lda, b, int ldb, beta, c, int ldc):
    sign-extend the six integers where they lie, then jump to `target`, which takes them as 64-bit."""
    if machine == "x86_64":
        code = bytes.fromhex("f30f1efa 4863c9 4d63c0 4d63c9")  # endbr64; movsxd rcx,ecx; r8,r8d; r9,r9d
        for slot in (0x10, 0x20, 0x30):  # lda, ldb, ldc on the stack: movsxd rax,[rsp+slot]; mov [rsp+slot],rax
            code += bytes([0x48, 0x63, 0x44, 0x24, slot, 0x48, 0x89, 0x44, 0x24, slot])
        return code + b"\x48\xb8" + struct.pack("<Q", target) + b"\xff\xe0"  # mov rax,target; jmp rax
    if machine == "aarch64":
        words = [0x93407C63, 0x93407C84, 0x93407CA5, 0x93407CE7]  # sxtw x3,w3; x4,w4; x5,w5; x7,w7 (m n k lda)
        words += [0xB9800BF0, 0xF90007F0, 0xB9801BF0, 0xF9000FF0]  # ldrsw x16,[sp,#8|#24]; str x16 (ldb, ldc)
        words += [0x58000050, 0xD61F0200]  # ldr x16,=target; br x16
        return struct.pack(f"<{len(words)}I", *words) + struct.pack("<Q", target)
    raise OSError(f"no BLAS shim for {machine}")


def shim_image(targets: dict[str, int], machine: str) -> bytes:
    """An ELF64 shared object that exports each name of `targets` as a trampoline to its address."""
    names, strtab = list(targets), b"\0"
    code, offsets = b"", []
    for name in names:
        offsets.append(len(code))
        code += _trampoline(targets[name], machine)
        code += b"\0" * (-len(code) % 16)
    headers = 64 + 4 * 56
    symbols = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    n_symbols = len(names) + 1
    hash_at = headers + 24 * n_symbols
    # One bucket: every symbol is chained from it.
    hash_table = struct.pack(f"<{3 + n_symbols}I", 1, n_symbols, 1, 0, *[*range(2, n_symbols), 0])
    strings_at = hash_at + len(hash_table)
    code_at = strings_at + 1 + sum(len(n) + 1 for n in names)
    code_at += -code_at % 16
    for name, offset in zip(names, offsets, strict=True):
        symbols += struct.pack("<IBBHQQ", len(strtab), 0x12, 0, 1, code_at + offset, len(code))  # GLOBAL FUNC
        strtab += name.encode() + b"\0"
    text = symbols + hash_table + strtab
    text = text.ljust(code_at - headers, b"\0") + code
    dynamic_at, text_size = _PAGE, headers + len(text)
    dynamic = struct.pack(
        "<12Q", 4, hash_at, 5, strings_at, 6, headers, 10, len(strtab), 11, 24, 0, 0
    )  # HASH STRTAB SYMTAB STRSZ SYMENT NULL
    machine_id = {"x86_64": 62, "aarch64": 183}[machine]
    elf = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, machine_id, 1, 0, 64, 0, 0, 64, 56, 4, 64, 0, 0)
    segments = [
        (1, 5, 0, text_size, _PAGE),  # LOAD  R X
        (1, 6, dynamic_at, len(dynamic), _PAGE),  # LOAD  RW: the linker relocates the dynamic table in place
        (2, 6, dynamic_at, len(dynamic), 8),  # DYNAMIC
        (0x6474E551, 6, 0, 0, 16),  # GNU_STACK: not executable
    ]
    for kind, flags, at, size, align in segments:
        elf += struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, align)
    return (elf + text).ljust(dynamic_at, b"\0") + dynamic


def _numpy_openblas() -> tuple[Path, str] | None:
    """The OpenBLAS inside NumPy's wheel and the suffix of its 64-bit names, found without importing NumPy."""
    spec = importlib.util.find_spec("numpy")
    if spec is None or not spec.submodule_search_locations:
        return None
    package = Path(spec.submodule_search_locations[0])
    found = sorted(package.parent.glob("numpy.libs/*openblas*.so*")) + sorted(package.glob(".libs/*openblas*.so*"))
    return (found[0], "64_") if found else None


def _symbol(openblas: ctypes.CDLL, name: str, suffix: str) -> Any:
    """A function by its name in NumPy 2 wheels, or in those of NumPy 1. AttributeError where it has neither."""
    return getattr(openblas, f"scipy_{name}{suffix}", None) or getattr(openblas, f"{name}{suffix}")


def _agrees(library: ctypes.CDLL) -> bool:
    """Whether the library's cblas_sgemm computes a 2x3 by 3x2 product, with C of a wider row than the product."""
    a, b, c = (ctypes.c_float * 6)(1, 2, 3, 4, 5, 6), (ctypes.c_float * 6)(1, 0, 0, 1, 1, 1), (ctypes.c_float * 6)()
    integer, real = ctypes.c_int, ctypes.c_float
    gemm = library.cblas_sgemm
    gemm.argtypes = [integer] * 6 + [real, ctypes.c_void_p, integer, ctypes.c_void_p, integer, real, ctypes.c_void_p]
    gemm.argtypes += [integer]
    gemm.restype = None
    gemm(101, 111, 111, 2, 2, 3, 1.0, a, 3, b, 2, 0.0, c, 3)
    return list(c) == [4, 5, 0, 10, 11, 0]


def _load_shim(image: bytes) -> ctypes.CDLL:
    handle = os.memfd_create("mlxtrain-blas")
    os.write(handle, image)
    path = f"/proc/self/fd/{handle}"
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
        if not _agrees(library):
            raise OSError("the shim's test product is wrong")
        # Tested privately; the second open of the same object only makes its names global.
        return ctypes.CDLL(path, mode=os.RTLD_GLOBAL | os.RTLD_NOW)
    finally:
        os.close(handle)


def _leave_a_core(openblas: ctypes.CDLL, suffix: str) -> str:
    """Use all cores but one, unless the environment says how many. OpenBLAS's threads wait for each other by spinning:
    with every core theirs, one other busy program makes each product wait for the scheduler, which was measured to cost
    five times and more. A fixed number, not one by load, so that the same run gives the same bits."""
    cores = len(os.sched_getaffinity(0))
    if not any(os.environ.get(name) for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")):
        _symbol(openblas, "openblas_set_num_threads", suffix)(max(1, cores - 1))
    threads = _symbol(openblas, "openblas_get_num_threads", suffix)()
    return f"{threads} of {cores} cores"


def use_numpy_blas() -> BlasStatus:
    """Give MLX's CPU backend NumPy's OpenBLAS. Must run before `mlx.core` is imported; never raises.

    `MLXTRAIN_BLAS=off` leaves MLX as it is; `MLXTRAIN_BLAS=/path/libopenblas.so` loads that library instead.
    """
    if sys.platform != "linux":
        return BlasStatus(name="Accelerate", fast=True, detail="MLX's own on this platform")
    wanted = os.environ.get("MLXTRAIN_BLAS", "")
    slow = "matrix products on the CPU run many times slower"
    if wanted == "off":
        return BlasStatus(name="MLX's own", fast=False, detail="MLXTRAIN_BLAS=off")
    if "mlx.core" in sys.modules:
        return BlasStatus(
            name="MLX's own", fast=False, detail=f"mlx was imported before mlxtrain: {slow}; import mlxtrain first"
        )
    try:
        if wanted:
            ctypes.CDLL(wanted, mode=os.RTLD_GLOBAL)
            return BlasStatus(name=Path(wanted).name, fast=True, detail="MLXTRAIN_BLAS")
        found = _numpy_openblas()
        if found is None:
            raise OSError("this NumPy carries no OpenBLAS (not a wheel?)")
        path, suffix = found
        for needed in ("libquadmath", "libgfortran"):  # NumPy 1's OpenBLAS does not know where its own libraries lie
            for library in path.parent.glob(f"{needed}*"):
                ctypes.CDLL(str(library))
        openblas = ctypes.CDLL(str(path))
        targets = {}
        for name in ("cblas_sgemm", "cblas_dgemm"):
            targets[name] = ctypes.cast(_symbol(openblas, name, suffix), ctypes.c_void_p).value
        _load_shim(shim_image(targets, platform.machine()))
        return BlasStatus(name="OpenBLAS of NumPy", fast=True, detail=_leave_a_core(openblas, suffix))
    except (OSError, AttributeError) as error:
        hint = "set MLXTRAIN_BLAS to the path of a libopenblas.so"
        return BlasStatus(name="MLX's own", fast=False, detail=f"no fast BLAS ({error}): {slow}; {hint}")
