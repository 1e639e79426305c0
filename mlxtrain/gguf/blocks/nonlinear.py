"""Types whose nibbles stand for sixteen fixed values: IQ4_NL IQ4_XS, and the 4-bit floats MXFP4 NVFP4.

Two nibbles are looked up at once: a 16-bit word that holds one in each byte gives a word of two int8.
"""

from functools import cache

import mlx.core as mx

from mlxtrain.gguf.blocks.fields import Codec, f16, fields, lookup, packed_table, planes, u16

# ggml-common.h, kvalues_iq4nl.
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# E2M1 of the OCP Microscaling Formats (MX) specification 1.0, doubled to be whole. -0 is stored as +0, as ggml does.
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


@cache
def _pairs(values: tuple[int, ...]) -> mx.array:
    """Table from low | high << 8 (two nibbles) to the two values; the entries between are never asked for."""
    return packed_table([[values[i & 15], values[i >> 8]] for i in range(0x0F10)], "uint16")


def _values(values: tuple[int, ...], packed: mx.array) -> mx.array:
    """Bytes (..., k) to the values of their low nibbles, then of their high ones, int8 (..., 2, k); k is even."""
    return lookup(_pairs(values), planes(packed, 4).view(mx.uint16)).view(mx.int8)


@cache
def _e8m0_halves() -> mx.array:
    """E8M0 scales (powers of two, bias 127), halved because the E2M1 values are doubled; fp32 (256,). The two smallest
    are subnormal."""
    return mx.array([2.0 ** (e - 128) for e in range(256)], mx.float32)


@cache
def _ue4m3_halves() -> mx.array:
    """Unsigned E4M3 scales (bias 7), halved because the E2M1 values are doubled; fp32 (256,). Bit 7 is ignored but for
    the NaN code: 0x7F counts as zero and 0xFF as 480, as in `gguf.quants`."""

    def half(code: int) -> float:
        exponent, mantissa = code >> 3 & 15, code & 7
        if code == 0x7F:
            return 0.0
        return mantissa * 2.0**-10 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 8)

    return mx.array([half(code) for code in range(256)], mx.float32)


def iq4_nl(blocks: mx.array) -> mx.array:
    """d (fp16), 16 bytes of nibbles for 32 weights: d * value."""
    return _values(_IQ4, blocks[:, 2:]).reshape(-1, 32).astype(mx.float32) * f16(blocks, 0)


def iq4_xs(blocks: mx.array) -> mx.array:
    """d (fp16), 8 x 2 high and 8 x 4 low bits of scales s, 128 bytes of nibbles for 256 weights: d * (s - 32) * value,
    s for 32 weights."""
    n = blocks.shape[0]
    high = fields(u16(blocks, 2, 1), tuple(range(0, 16, 2)), 2).astype(mx.uint8) << 4
    small = (fields(blocks[:, 4:8], (0, 4), 4) | high).view(mx.int8) - mx.array(32, mx.int8)
    scale = small.astype(mx.float32) * f16(blocks, 0)
    q = _values(_IQ4, blocks[:, 8:].reshape(n, 8, 16)).reshape(n, 8, 32)
    return q.astype(mx.float32) * scale[:, :, None]


def mxfp4(blocks: mx.array) -> mx.array:
    """An E8M0 scale, 16 bytes of nibbles for 32 weights: scale * value."""
    scale = lookup(_e8m0_halves(), blocks[:, :1])
    return _values(_E2M1, blocks[:, 1:]).reshape(-1, 32).astype(mx.float32) * scale


def nvfp4(blocks: mx.array) -> mx.array:
    """Four unsigned E4M3 scales, each for 8 bytes of nibbles, 64 weights in all: scale * value."""
    n = blocks.shape[0]
    scale = lookup(_ue4m3_halves(), blocks[:, :4])
    # Low and high nibbles of all 32 bytes first; runs of eight values, moved as one word each, then go to their scales.
    halves = _values(_E2M1, blocks[:, 4:]).view(mx.uint64).swapaxes(1, 2)
    q = halves.reshape(n, 4, 2).view(mx.int8)
    return q.astype(mx.float32) * scale[:, :, None]


CODECS: dict[str, Codec] = {"IQ4_NL": iq4_nl, "IQ4_XS": iq4_xs, "MXFP4": mxfp4, "NVFP4": nvfp4}
