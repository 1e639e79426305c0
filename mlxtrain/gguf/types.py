"""The tensor types of GGUF: ids, names, block sizes. Pure Python: a header can be checked without MLX.

Ids are those of ggml's `enum ggml_type` (ggml.h); sizes are those of its block structures (ggml-common.h).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockType:
    """One ggml tensor type. A row is a whole number of blocks; plain types have blocks of one element."""

    name: str
    id: int
    weights: int  # elements in a block
    nbytes: int  # bytes of a block


# (name, id, elements per block, bytes per block). The sums spell out a block's fields in stored order.
_TABLE = (
    ("F32", 0, 1, 4),
    ("F16", 1, 1, 2),
    ("Q4_0", 2, 32, 2 + 16),
    ("Q4_1", 3, 32, 2 + 2 + 16),
    ("Q5_0", 6, 32, 2 + 4 + 16),
    ("Q5_1", 7, 32, 2 + 2 + 4 + 16),
    ("Q8_0", 8, 32, 2 + 32),
    # Activations only, never stored. Two fp16 fields; the gguf package (0.19) still counts them as fp32, 40 bytes.
    ("Q8_1", 9, 32, 2 + 2 + 32),
    ("Q2_K", 10, 256, 16 + 64 + 2 + 2),
    ("Q3_K", 11, 256, 32 + 64 + 12 + 2),
    ("Q4_K", 12, 256, 2 + 2 + 12 + 128),
    ("Q5_K", 13, 256, 2 + 2 + 12 + 32 + 128),
    ("Q6_K", 14, 256, 128 + 64 + 16 + 2),
    ("Q8_K", 15, 256, 4 + 256 + 32),  # activations only, never stored
    ("IQ2_XXS", 16, 256, 2 + 64),
    ("IQ2_XS", 17, 256, 2 + 64 + 8),
    ("IQ3_XXS", 18, 256, 2 + 64 + 32),
    ("IQ1_S", 19, 256, 2 + 32 + 16),
    ("IQ4_NL", 20, 32, 2 + 16),
    ("IQ3_S", 21, 256, 2 + 64 + 8 + 32 + 4),
    ("IQ2_S", 22, 256, 2 + 32 + 32 + 8 + 8),
    ("IQ4_XS", 23, 256, 2 + 2 + 4 + 128),
    ("I8", 24, 1, 1),
    ("I16", 25, 1, 2),
    ("I32", 26, 1, 4),
    ("I64", 27, 1, 8),
    ("F64", 28, 1, 8),
    ("IQ1_M", 29, 256, 32 + 16 + 8),
    ("BF16", 30, 1, 2),
    ("TQ1_0", 34, 256, 48 + 4 + 2),
    ("TQ2_0", 35, 256, 64 + 2),
    ("MXFP4", 39, 32, 1 + 16),
    ("NVFP4", 40, 64, 4 + 32),
    ("Q1_0", 41, 128, 2 + 16),
)

BLOCK_TYPES: dict[int, BlockType] = {row[1]: BlockType(*row) for row in _TABLE}
BY_NAME: dict[str, BlockType] = {kind.name: kind for kind in BLOCK_TYPES.values()}

# Ids that ggml once gave out and has withdrawn. Their sizes changed over time, so a file that has them can't be read.
REMOVED_TYPES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}


def type_name(type_id: int) -> str:
    """A name for any id, for messages: "Q4_K", "Q4_2 (removed from ggml)" or "type 99 (unknown)"."""
    if type_id in BLOCK_TYPES:
        return BLOCK_TYPES[type_id].name
    if type_id in REMOVED_TYPES:
        return f"{REMOVED_TYPES[type_id]} (removed from ggml)"
    return f"type {type_id} (unknown)"


def row_bytes(kind: BlockType | str, n_weights: int) -> int:
    """Bytes of a row of `n_weights` elements; ValueError where that is not a whole number of blocks, KeyError for a
    name that is not in `BY_NAME`."""
    if isinstance(kind, str):
        kind = BY_NAME[kind]
    blocks, rest = divmod(n_weights, kind.weights)
    if rest or n_weights < 0:
        raise ValueError(
            f"{kind.name} stores blocks of {kind.weights} weights: a row of {n_weights} is not a whole number of them"
        )
    return blocks * kind.nbytes


def row_weights(kind: BlockType | str, n_bytes: int) -> int:
    """Elements in a row of `n_bytes` bytes; ValueError where that is not a whole number of blocks, KeyError for a name
    that is not in `BY_NAME`."""
    if isinstance(kind, str):
        kind = BY_NAME[kind]
    blocks, rest = divmod(n_bytes, kind.nbytes)
    if rest or n_bytes < 0:
        raise ValueError(
            f"{kind.name} stores blocks of {kind.nbytes} bytes: {n_bytes} bytes are not a whole number of them"
        )
    return blocks * kind.weights
