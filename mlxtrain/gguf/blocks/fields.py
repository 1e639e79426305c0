"""What the codecs share: fields of packed blocks, and small tables looked up with them.

Three facts about MLX's CPU backend shape the code; on a GPU they cost nothing. A binary operation is vectorised only
along runs of 16 or more contiguous elements, so that a whole row of bytes is shifted by a broadcast vector of shifts.
An operation on bytes costs a quarter of one on floats, so that values stay bytes until the last cast. And
`take_along_axis` gathers ten times faster than `take`.
"""

from collections.abc import Callable
from functools import cache

import mlx.core as mx

Codec = Callable[[mx.array], mx.array]


def f16(blocks: mx.array, offset: int, count: int = 1) -> mx.array:
    """`count` fp16 fields at an even byte offset of each block: uint8 (n, bytes) to fp32 (n, count)."""
    first = offset // 2
    return blocks.view(mx.float16)[:, first : first + count].astype(mx.float32)


def u16(blocks: mx.array, offset: int, count: int) -> mx.array:
    """`count` 16-bit words at an even byte offset of each block: uint8 (n, bytes) to uint16 (n, count)."""
    first = offset // 2
    return blocks.view(mx.uint16)[:, first : first + count]


def u32(blocks: mx.array, offset: int, count: int) -> mx.array:
    """`count` 32-bit words at an even byte offset of each block: uint8 (n, bytes) to uint32 (n, count).

    Put together from halves: a view would read words that are not aligned to their size, which a GPU need not allow.
    """
    halves = u16(blocks, offset, 2 * count).astype(mx.uint32)
    return halves[:, 0::2] | (halves[:, 1::2] << 16)


def planes(packed: mx.array, bits: int) -> mx.array:
    """Unpack bytes of 8 / bits fields, lowest first, into one plane per field: uint8 (..., k) to (..., 8 / bits, k)."""
    shifts = mx.array(tuple(range(0, 8, bits)), mx.uint8)[:, None]
    return (packed[..., None, :] >> shifts) & ((1 << bits) - 1)


def fields(words: mx.array, shifts: tuple[int, ...], bits: int) -> mx.array:
    """Fields of `bits` bits at the given shifts of each word, side by side: (n, k) to (n, k * len(shifts))."""
    found = (words[..., None] >> mx.array(shifts, words.dtype)) & ((1 << bits) - 1)
    return found.reshape(words.shape[0], words.shape[1] * len(shifts))


def lookup(table: mx.array, index: mx.array) -> mx.array:
    """table[index] for a table of one dimension; every value that `index` can have must be in the table."""
    return mx.take_along_axis(table, index.reshape(-1), axis=0).reshape(index.shape)


def packed_table(rows: list[list[int]], word: str) -> mx.array:
    """A table of small signed integers, each row packed into one word ("uint16", "uint32" or "uint64"), first value in
    the lowest byte: one gather then fetches a whole row, to be viewed as int8.

    Made without MLX operations: it holds its data from the start, whichever trace or thread asks for it first.
    """
    import numpy as np

    return mx.array(np.array(rows, np.int8).view(word).reshape(-1))


@cache
def bit_table(clear: int, set_: int) -> mx.array:
    """For each byte eight int8 in a uint64, lowest bit first: `set_` where the bit is one, else `clear`."""
    return packed_table([[set_ if byte >> bit & 1 else clear for bit in range(8)] for byte in range(256)], "uint64")
