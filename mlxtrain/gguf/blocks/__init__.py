"""GGUF block codecs: bytes of a stored tensor to weights, in MLX operations, bit for bit as `gguf.quants.dequantize`.

Each codec takes whole blocks, uint8 (n, bytes per block), and gives n times the weights of a block. Block layouts are
those of ggml's ggml-common.h and the arithmetic that of `gguf.quants`; ids and sizes are in `mlxtrain.gguf.types`.

The bits hold under any order of the operations, fused or not. A scale (fp16: 11 significant bits) times the integers
of a codec needs at most 23 bits, so that every product is exact in fp32. Where a minimum is added (Q4_1 Q5_1 Q2_K Q4_K
Q5_K) that one sum rounds, once, and a fused multiply-add rounds it the same. No codec is an exception. Two things are
the hardware's own: the sign and payload of a NaN, and fp32 subnormals on a device that flushes them to zero (MXFP4
blocks whose exponent byte is 0 or 1; BF16 numbers that small).
"""

import mlx.core as mx

from mlxtrain.errors import UserError
from mlxtrain.gguf.blocks import basic, iquants, kquants, nonlinear
from mlxtrain.gguf.blocks.fields import Codec
from mlxtrain.gguf.types import BY_NAME, row_weights

CODECS: dict[str, Codec] = {
    name: codec for family in (basic, kquants, iquants, nonlinear) for name, codec in family.CODECS.items()
}
DECODABLE: frozenset[str] = frozenset(CODECS)


def decode(raw: mx.array, type_name: str, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Decode stored rows: uint8 (..., row bytes) to `dtype` (..., row weights), computed in fp32 and then cast.

    The rows must start at a multiple of two bytes (F32: four), since fields are read as words; GGUF's alignment sees to
    that. UserError names a type that has no codec; ValueError a `raw` that is not made of whole blocks of bytes.
    """
    if type_name not in CODECS:
        known = ", ".join(name for name in BY_NAME if name in DECODABLE)
        raise UserError(f"tensor type {type_name} cannot be decoded; convert it to one that can: {known}")
    if raw.dtype != mx.uint8 or raw.ndim == 0:
        raise ValueError(f"stored rows are uint8 (..., row bytes), not {raw.dtype} {raw.shape}")
    kind = BY_NAME[type_name]
    shape = (*raw.shape[:-1], row_weights(kind, raw.shape[-1]))
    blocks = raw.reshape(raw.size // kind.nbytes, kind.nbytes)
    return CODECS[type_name](blocks).reshape(shape).astype(dtype)
