"""K-quants (Q2_K Q3_K Q4_K Q5_K Q6_K) and ternary types (TQ1_0 TQ2_0): super-blocks of 256 weights.

One or two fp16 scales; in a k-quant each sub-block of 16 or 32 weights has a small integer, or two, that scales them.
"""

import mlx.core as mx

from mlxtrain.gguf.blocks.fields import Codec, f16, planes, u16

_BYTE_LOW6 = 0x3F3F  # masks for two bytes at a time
_BYTE_HIGH2 = 0x3030
_BYTE_LOW4 = 0x0F0F


def _scales_and_mins(blocks: mx.array) -> mx.array:
    """The 12 bytes at offset 4 of Q4_K and Q5_K hold eight 6-bit scales and eight 6-bit minima; with d and dmin (fp16,
    before them) they give the factors of the sub-blocks: fp32 (n, 2, 8), first d * scale, then dmin * min.

    Bytes 0..3 hold scales 0..3 and bytes 4..7 minima 0..3 in their low six bits; bytes 8..11 hold the low four bits of
    scales 4..7 in their low and of minima 4..7 in their high halves, whose two high bits lie on top of bytes 0..7.
    """
    words = u16(blocks, 4, 6)
    first, high, low = words[:, :4], (words[:, :4] >> 2) & _BYTE_HIGH2, words[:, 4:]
    first = first & _BYTE_LOW6
    pieces = [first[:, :2], (low & _BYTE_LOW4) | high[:, :2], first[:, 2:], ((low >> 4) & _BYTE_LOW4) | high[:, 2:]]
    small = mx.concatenate(pieces, axis=1).view(mx.uint8).reshape(-1, 2, 8)
    return small.astype(mx.float32) * f16(blocks, 0, 2)[:, :, None]


def q2_k(blocks: mx.array) -> mx.array:
    """16 bytes (scale, min nibbles), 64 bytes of 2-bit q, d, dmin: d * scale * q - dmin * min, by sub-blocks of 16."""
    n = blocks.shape[0]
    factors = planes(blocks[:, :16], 4).astype(mx.float32) * f16(blocks, 80, 2)[:, :, None]
    q = planes(blocks[:, 16:80].reshape(n, 2, 32), 2).reshape(n, 16, 16)
    return q.astype(mx.float32) * factors[:, 0, :, None] - factors[:, 1, :, None]


def q3_k(blocks: mx.array) -> mx.array:
    """32 bytes of third bits, 64 bytes of 2-bit q, 12 bytes of 6-bit scales, d: d * (scale - 32) * (q - 4), by
    sub-blocks of 16."""
    n = blocks.shape[0]
    low = planes(blocks[:, 96:104], 4).reshape(n, 16)
    high = planes(blocks[:, 104:108], 2).reshape(n, 16) << 4
    scale = ((low | high).view(mx.int8) - mx.array(32, mx.int8)).astype(mx.float32) * f16(blocks, 108)
    third = planes(blocks[:, :32], 1).reshape(n, 256) << 2
    q = planes(blocks[:, 32:96].reshape(n, 2, 32), 2).reshape(n, 256) | third
    q = (q.view(mx.int8) - mx.array(4, mx.int8)).reshape(n, 16, 16)
    return q.astype(mx.float32) * scale[:, :, None]


def q4_k(blocks: mx.array) -> mx.array:
    """d, dmin, 12 bytes of scales and minima, 128 bytes of nibbles: d * scale * q - dmin * min, by sub-blocks of 32."""
    n = blocks.shape[0]
    factors = _scales_and_mins(blocks)
    q = planes(blocks[:, 16:].reshape(n, 4, 32), 4).reshape(n, 8, 32)
    return q.astype(mx.float32) * factors[:, 0, :, None] - factors[:, 1, :, None]


def q5_k(blocks: mx.array) -> mx.array:
    """d, dmin, 12 bytes of scales and minima, 32 bytes of fifth bits, 128 bytes of nibbles: as Q4_K, q 0..31."""
    n = blocks.shape[0]
    factors = _scales_and_mins(blocks)
    fifth = planes(blocks[:, 16:48], 1) << 4
    q = planes(blocks[:, 48:].reshape(n, 4, 32), 4).reshape(n, 8, 32) | fifth
    return q.astype(mx.float32) * factors[:, 0, :, None] - factors[:, 1, :, None]


def q6_k(blocks: mx.array) -> mx.array:
    """128 bytes of nibbles, 64 bytes of two high bits, 16 int8 scales, d: d * scale * (q - 32), by sub-blocks of 16."""
    n = blocks.shape[0]
    scale = blocks[:, 192:208].view(mx.int8).astype(mx.float32) * f16(blocks, 208)
    high = planes(blocks[:, 128:192].reshape(n, 2, 32), 2).reshape(n, 256) << 4
    q = planes(blocks[:, :128].reshape(n, 2, 64), 4).reshape(n, 256) | high
    q = (q.view(mx.int8) - mx.array(32, mx.int8)).reshape(n, 16, 16)
    return q.astype(mx.float32) * scale[:, :, None]


def _shifted_digits(packed: mx.array, count: int) -> mx.array:
    """A byte b stands for the fraction b / 256, whose ternary digits are weights; digit i leads in b * 3^i (mod 256).
    uint8 (n, k) to (n, count * k), all first digits first."""
    powers = mx.array([3**i for i in range(count)], mx.uint8)[:, None]
    return (packed[:, None, :] * powers).reshape(packed.shape[0], count * packed.shape[1])


def tq1_0(blocks: mx.array) -> mx.array:
    """48 bytes of five ternary digits (32 and 16 bytes, each digit by digit), 4 bytes of four, d: d * (digit - 1)."""
    parts = [_shifted_digits(blocks[:, a:b], count) for a, b, count in ((0, 32, 5), (32, 48, 5), (48, 52, 4))]
    digits = (mx.concatenate(parts, axis=1).astype(mx.uint16) * 3) >> 8
    return (digits.astype(mx.int8) - mx.array(1, mx.int8)).astype(mx.float32) * f16(blocks, 52)


def tq2_0(blocks: mx.array) -> mx.array:
    """64 bytes of 2-bit q, d: d * (q - 1); 3 is not used by any encoder and gives 2 d."""
    n = blocks.shape[0]
    q = planes(blocks[:, :64].reshape(n, 2, 32), 2).reshape(n, 256).view(mx.int8) - mx.array(1, mx.int8)
    return q.astype(mx.float32) * f16(blocks, 64)


CODECS: dict[str, Codec] = {
    "Q2_K": q2_k,
    "Q3_K": q3_k,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
    "TQ1_0": tq1_0,
    "TQ2_0": tq2_0,
}
