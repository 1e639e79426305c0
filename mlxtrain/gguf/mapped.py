"""Tensors of a mapped GGUF as MLX arrays: without a copy on Metal, as a short-lived copy elsewhere.

Since MLX 0.32.1 `mx.asarray` adopts page-aligned host memory on Metal. So a tensor is imported as the window of its
file that begins on a page boundary, then sliced. Elsewhere the same calls copy the window, and the caller lets go after
use.
"""

import mmap

import mlx.core as mx
import numpy as np

from mlxtrain.errors import UserError
from mlxtrain.gguf.reader import Tensor

_MAX_DIM = 2**31 - 1  # MLX dimensions are int32


def _unit(*sizes: int) -> int:
    """The widest unsigned integer, in bytes, that divides every size."""
    return next(unit for unit in (8, 4, 2, 1) if all(size % unit == 0 for size in sizes))


def blocks(tensor: Tensor, copy: bool | None = None) -> mx.array:
    """The tensor's blocks as they lie in the file: uint8, shape (rows, bytes per row).

    On Metal the array is the file's own pages, which are mapped read-only: keep a reference to it for as long as
    anything computed from it is not evaluated, so that MLX never takes its buffer for a result. `copy=False` raises
    ValueError where the pages cannot be adopted. Raises UserError for a tensor of 16 GiB or more.
    """
    rows, row_bytes = tensor.raw.shape
    window_start = tensor.offset // mmap.PAGESIZE * mmap.PAGESIZE
    skip = tensor.offset - window_start
    window = tensor.map[window_start : tensor.offset + tensor.nbytes]
    # Imported in the widest unit that divides everything, so that 16 GiB fit a dimension of 2^31.
    unit = _unit(skip, row_bytes, len(window))
    if len(window) // unit > _MAX_DIM:
        raise UserError(
            f"{tensor.path}: tensor {tensor.name!r} has {tensor.nbytes} bytes, more than MLX can address at once"
        )
    array = mx.asarray(window.view(np.dtype(f"u{unit}")), copy=copy)
    array = array[skip // unit : (skip + tensor.nbytes) // unit].reshape(rows, row_bytes // unit)
    return array.view(mx.uint8) if unit > 1 else array


class MappedTensors:
    """Blocks of tensors by name. On Metal each is imported once and kept, since it costs no memory of its own;
    elsewhere each call copies, and the copy lives as long as the caller holds it."""

    def __init__(self, tensors: dict[str, Tensor]):
        self.tensors = tensors
        self._keep = mx.metal.is_available()  # pages are adopted whatever the default device
        self._kept: dict[str, mx.array] = {}

    def __getitem__(self, name: str) -> mx.array:
        array = self._kept.get(name)
        if array is None:
            array = blocks(self.tensors[name])
            if self._keep:
                self._kept[name] = array
        return array

    def rows(self, name: str, ids: np.ndarray) -> mx.array:
        """The blocks of some rows only (an embedding look-up): uint8, shape (*ids.shape, bytes per row)."""
        return mx.array(self.tensors[name].raw[ids])
