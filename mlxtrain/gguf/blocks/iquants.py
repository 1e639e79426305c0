"""I-quants with a codebook: IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S. Super-blocks of 256 weights.

A codebook entry is a vector of eight (IQ3: four) small integers, packed into one word, so that one gather fetches it.
The codebooks are those of the installed `gguf` package, read at first use. IQ2 and IQ3 store magnitudes and, apart from
them, signs: eight bits for eight weights, or seven, where the eighth makes the number of minus signs even.
"""

from functools import cache

import mlx.core as mx

from mlxtrain.gguf.blocks.fields import Codec, bit_table, f16, fields, lookup, packed_table, u16, u32


def _gguf_grid(name: str) -> list[list[int]]:
    from gguf import quants

    codec = getattr(quants, name)
    codec.init_grid()
    return codec.grid.reshape(codec.grid_shape).astype(int).tolist()


@cache
def _grid(name: str) -> mx.array:
    """Codebook of an IQ2 (uint64) or IQ3 (uint32) codec, keyed by its name: codecs share sizes, not codebooks."""
    return packed_table(_gguf_grid(name), "uint32" if name.startswith("IQ3") else "uint64")


@cache
def _iq1_grid() -> mx.array:
    """The codebook of IQ1_S and IQ1_M with their shift of +1/8 or -1/8 added, in eighths: 4096 entries, bit 11 of the
    index being the sign of the shift."""
    grid = _gguf_grid("IQ1_S")
    return packed_table([[8 * value + shift for value in row] for shift in (1, -1) for row in grid], "uint64")


@cache
def _even_signs() -> mx.array:
    """Seven stored signs to eight +1 or -1, int8 in a uint64."""
    rows = [[-1 if (s | (s.bit_count() & 1) << 7) >> bit & 1 else 1 for bit in range(8)] for s in range(128)]
    return packed_table(rows, "uint64")


def _signed(magnitudes: mx.array, signs: mx.array, group: int) -> mx.array:
    """Packed magnitudes times packed signs: fp32 (n, 256 / group, group)."""
    product = magnitudes.view(mx.int8) * signs.view(mx.int8)
    return product.reshape(-1, 256 // group, group).astype(mx.float32)


def iq2_xxs(blocks: mx.array) -> mx.array:
    """d, and for each 32 weights four codebook indices, then 4 x 7 signs and a 4-bit scale s in one 32-bit word:
    d * (s + 1/2) / 4 * sign * grid."""
    n = blocks.shape[0]
    index = blocks[:, 2:].reshape(n, 8, 8)[:, :, :4].reshape(n, 32)
    tail = u32(blocks, 2, 16)[:, 1::2]
    scale = f16(blocks, 0) * (0.5 + (tail >> 28).astype(mx.float32)) * 0.25
    signs = lookup(_even_signs(), fields(tail, (0, 7, 14, 21), 7))
    return _signed(lookup(_grid("IQ2_XXS"), index), signs, 32) * scale[:, :, None]


def iq2_xs(blocks: mx.array) -> mx.array:
    """d, 32 words (9-bit codebook index, 7 signs), 16 nibbles s: d * (s + 1/2) / 4 * sign * grid, s for 16 weights."""
    words = u16(blocks, 2, 32)
    scale = f16(blocks, 0) * (0.5 + fields(blocks[:, 66:], (0, 4), 4).astype(mx.float32)) * 0.25
    signs = lookup(_even_signs(), words >> 9)
    return _signed(lookup(_grid("IQ2_XS"), words & 511), signs, 16) * scale[:, :, None]


def iq2_s(blocks: mx.array) -> mx.array:
    """d, 32 low bytes of codebook indices, 32 bytes of signs, 32 x 2 high bits, 16 nibbles s: as IQ2_XS."""
    high = fields(blocks[:, 66:74], (0, 2, 4, 6), 2).astype(mx.uint16) << 8
    index = blocks[:, 2:34].astype(mx.uint16) | high
    scale = f16(blocks, 0) * (0.5 + fields(blocks[:, 74:], (0, 4), 4).astype(mx.float32)) * 0.25
    signs = lookup(bit_table(1, -1), blocks[:, 34:66])
    return _signed(lookup(_grid("IQ2_S"), index), signs, 16) * scale[:, :, None]


def iq3_xxs(blocks: mx.array) -> mx.array:
    """d, 64 codebook indices, and for each 32 weights a 32-bit word of 4 x 7 signs and a 4-bit scale s:
    d * (s + 1/2) / 2 * sign * grid."""
    tail = u32(blocks, 66, 8)
    scale = f16(blocks, 0) * (0.5 + (tail >> 28).astype(mx.float32)) * 0.5
    signs = lookup(_even_signs(), fields(tail, (0, 7, 14, 21), 7))
    return _signed(lookup(_grid("IQ3_XXS"), blocks[:, 2:66]), signs, 32) * scale[:, :, None]


def iq3_s(blocks: mx.array) -> mx.array:
    """d, 64 low bytes of codebook indices, 64 ninth bits, 32 bytes of signs, 8 nibbles s: d * (2 s + 1) * sign * grid,
    s for 32 weights."""
    high = fields(blocks[:, 66:74], tuple(range(8)), 1).astype(mx.uint16) << 8
    index = blocks[:, 2:66].astype(mx.uint16) | high
    scale = f16(blocks, 0) * (2.0 * fields(blocks[:, 106:], (0, 4), 4).astype(mx.float32) + 1.0)
    signs = lookup(bit_table(1, -1), blocks[:, 74:106])
    return _signed(lookup(_grid("IQ3_S"), index), signs, 32) * scale[:, :, None]


def iq1_s(blocks: mx.array) -> mx.array:
    """d, 32 low bytes of codebook indices, 8 words (4 x 3 high bits, 3-bit scale s, sign of the shift):
    d * (2 s + 1) * (grid + shift), s and shift for 32 weights."""
    n = blocks.shape[0]
    words = u16(blocks, 34, 8)
    high = fields(words, (0, 3, 6, 9), 3).reshape(n, 8, 4) | ((words >> 15) << 3)[:, :, None]
    index = blocks[:, 2:34].astype(mx.uint16) | (high.reshape(n, 32) << 8)
    scale = f16(blocks, 0) * 0.125 * (2.0 * ((words >> 12) & 7).astype(mx.float32) + 1.0)
    eighths = lookup(_iq1_grid(), index).view(mx.int8).reshape(n, 8, 32)
    return eighths.astype(mx.float32) * scale[:, :, None]


def iq1_m(blocks: mx.array) -> mx.array:
    """32 low bytes of codebook indices, 32 nibbles (3 high bits, sign of the shift), 4 words (4 x 3-bit scales s, four
    bits of d): d * (2 s + 1) * (grid + shift), s for 16 and shift for 8 weights."""
    n = blocks.shape[0]
    index = blocks[:, :32].astype(mx.uint16) | (fields(blocks[:, 32:48], (0, 4), 4).astype(mx.uint16) << 8)
    words = u16(blocks, 48, 4)
    parts = (words >> 12) << mx.array([0, 4, 8, 12], mx.uint16)
    d = (parts[:, 0:1] | parts[:, 1:2] | parts[:, 2:3] | parts[:, 3:4]).view(mx.float16).astype(mx.float32)
    scale = d * 0.125 * (2.0 * fields(words, (0, 3, 6, 9), 3).astype(mx.float32) + 1.0)
    eighths = lookup(_iq1_grid(), index).view(mx.int8).reshape(n, 16, 16)
    return eighths.astype(mx.float32) * scale[:, :, None]


CODECS: dict[str, Codec] = {
    "IQ1_S": iq1_s,
    "IQ1_M": iq1_m,
    "IQ2_XXS": iq2_xxs,
    "IQ2_XS": iq2_xs,
    "IQ2_S": iq2_s,
    "IQ3_XXS": iq3_xxs,
    "IQ3_S": iq3_s,
}
