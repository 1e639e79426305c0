"""Plain numbers (F32 F16 BF16) and the first quantised types (Q4_0 Q4_1 Q5_0 Q5_1 Q8_0).

The latter are blocks of 32 weights with one fp16 scale d. Sixteen bytes of nibbles hold weights 0..15 in their low and
16..31 in their high halves.
"""

import mlx.core as mx

from mlxtrain.gguf.blocks.fields import Codec, bit_table, lookup, planes
from mlxtrain.gguf.blocks.fields import f16 as f16_field


def f32(blocks: mx.array) -> mx.array:
    """fp32 as stored."""
    return blocks.view(mx.float32)


def f16(blocks: mx.array) -> mx.array:
    """fp16 as stored; `decode` widens it."""
    return blocks.view(mx.float16)


def bf16(blocks: mx.array) -> mx.array:
    """bf16 as stored; `decode` widens it."""
    return blocks.view(mx.bfloat16)


def _nibbles(blocks: mx.array, offset: int) -> mx.array:
    """Sixteen bytes of nibbles from a byte offset: uint8 (n, 32), 0..15."""
    return planes(blocks[:, offset : offset + 16], 4).reshape(-1, 32)


def _with_fifth_bit(blocks: mx.array, nibbles: mx.array, offset: int, clear: int, set_: int) -> mx.array:
    """Or each nibble with `set_` or `clear`, as the 32 bits from a byte offset say: int8 (n, 32)."""
    high = lookup(bit_table(clear, set_), blocks[:, offset : offset + 4]).view(mx.uint8)
    return (nibbles | high).view(mx.int8)


def q4_0(blocks: mx.array) -> mx.array:
    """d, nibbles: d * (q - 8)."""
    q = _nibbles(blocks, 2).view(mx.int8) - mx.array(8, mx.int8)
    return q.astype(mx.float32) * f16_field(blocks, 0)


def q4_1(blocks: mx.array) -> mx.array:
    """d, m (fp16), nibbles: d * q + m."""
    return _nibbles(blocks, 4).astype(mx.float32) * f16_field(blocks, 0) + f16_field(blocks, 2)


def q5_0(blocks: mx.array) -> mx.array:
    """d, 32 fifth bits, nibbles: d * (q - 16)."""
    # A nibble with its fifth bit clear is 16 too large: as two's complement, -16 is or-ing with 0xF0.
    q = _with_fifth_bit(blocks, _nibbles(blocks, 6), 2, clear=-16, set_=0)
    return q.astype(mx.float32) * f16_field(blocks, 0)


def q5_1(blocks: mx.array) -> mx.array:
    """d, m (fp16), 32 fifth bits, nibbles: d * q + m."""
    q = _with_fifth_bit(blocks, _nibbles(blocks, 8), 4, clear=0, set_=16)
    return q.astype(mx.float32) * f16_field(blocks, 0) + f16_field(blocks, 2)


def q8_0(blocks: mx.array) -> mx.array:
    """d, 32 int8: d * q."""
    # Cast the whole block, d included, and slice then: the cast of a slice is not vectorised.
    return blocks.view(mx.int8).astype(mx.float32)[:, 2:] * f16_field(blocks, 0)


CODECS: dict[str, Codec] = {
    "F32": f32,
    "F16": f16,
    "BF16": bf16,
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
}
