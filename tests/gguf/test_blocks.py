"""Block codecs against `gguf.quants.dequantize`: the same bits in fp32, for every type that it can dequantise.

NaNs are compared as NaN: IEEE 754 leaves the sign and payload of a NaN result open, and NumPy and MLX do differ (MLX
makes a signalling fp16 NaN quiet when it widens it, NumPy need not).
"""

import itertools
import shutil
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from mlxtrain.errors import UserError
from mlxtrain.gguf import types
from mlxtrain.gguf.blocks import DECODABLE, decode, iquants
from mlxtrain.gguf.types import BLOCK_TYPES, BY_NAME

NAMES = sorted(DECODABLE)
QUANTISED = [name for name in NAMES if BY_NAME[name].weights > 1]
# Byte offsets of the fp16 fields. IQ1_M (scattered bits), MXFP4 and NVFP4 (one-byte scales) have tests of their own.
FP16_FIELDS = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ1_S", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}
# Zeros, smallest and largest subnormals, smallest normal, largest finite, infinities, a NaN, and two ordinary values.
FP16_EXTREMES = np.array(
    [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x3C00, 0xB555], np.uint16
)
# As `mx.compile` needs one on Linux without a GPU; elsewhere MLX brings its own.
needs_compiler = pytest.mark.skipif(
    sys.platform == "linux" and mx.default_device() == mx.cpu and shutil.which("g++") is None,
    reason="mx.compile on this CPU needs g++",
)


def random_rows(name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random bytes, `shape` = (..., blocks in a row); about 3% of the fp16 fields are then infinite or NaN."""
    *lead, blocks = shape
    return np.random.default_rng(seed).integers(0, 256, (*lead, blocks * BY_NAME[name].nbytes), np.uint8)


def tame_rows(name: str) -> np.ndarray:
    """Random rows whose scales are small and finite, so that products of them are too."""
    raw = random_rows(name, (4, 2)).reshape(4, 2, -1)
    half = np.array([0.01], np.float16).view(np.uint8)
    if name == "MXFP4":
        raw[..., 0] = 120
    elif name == "IQ1_M":
        raw[..., 49::2] = (raw[..., 49::2] & 0x0F) | np.array([0, 0, 0, 2 << 4], np.uint8)
    else:
        for offset in FP16_FIELDS[name]:
            raw[..., offset : offset + 2] = half
    return raw.reshape(4, -1)


def reference(name: str, raw: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return quants.dequantize(raw, GGMLQuantizationType[name])


def assert_same_bits(found: mx.array, expected: np.ndarray) -> None:
    found = np.array(found)
    assert found.dtype == expected.dtype == np.float32
    assert found.shape == expected.shape
    differ = found.view(np.uint32) != expected.view(np.uint32)
    differ &= ~(np.isnan(found) & np.isnan(expected))
    where = np.argwhere(differ)[:3].tolist()
    assert not differ.any(), f"{differ.sum()} of {differ.size} differ, first at {where}"


def gguf_can(call, name: str) -> bool:
    try:
        call(name)
    except NotImplementedError:
        return False
    return True


def test_every_type_that_gguf_dequantises_is_decodable_and_no_other():
    def zeros(name):
        quants.dequantize(np.zeros((1, BY_NAME[name].nbytes), np.uint8), GGMLQuantizationType[name])

    assert {kind.name for kind in GGMLQuantizationType if gguf_can(zeros, kind.name)} == DECODABLE


@pytest.mark.parametrize("name", NAMES)
def test_random_bytes(name):
    # 2,000 blocks ask for each of the 4096 entries of the largest table 15 times on average.
    raw = random_rows(name, (8, 5, 50))
    assert_same_bits(decode(mx.array(raw), name), reference(name, raw))


@pytest.mark.parametrize("name", QUANTISED)
def test_blocks_of_one_byte_value(name):
    raw = np.repeat(np.array([[0x00], [0xFF], [0x80], [0x7F], [0x01]], np.uint8), 2 * BY_NAME[name].nbytes, axis=1)
    assert_same_bits(decode(mx.array(raw), name), reference(name, raw))


@pytest.mark.parametrize("name", sorted(FP16_FIELDS))
def test_extreme_fp16_scales(name):
    offsets = FP16_FIELDS[name]
    scales = np.array(list(itertools.product(FP16_EXTREMES, repeat=len(offsets))), np.uint16)
    raw = random_rows(name, (4, len(scales), 1))
    for field, offset in enumerate(offsets):
        raw[..., offset : offset + 2] = scales[:, field, None].view(np.uint8)
    expected = reference(name, raw)
    assert_same_bits(decode(mx.array(raw), name), expected)
    # The fields are where they are thought to be: an infinite scale shows, and a zero one gives zeros of a sign.
    assert np.isinf(expected).any()
    assert np.signbit(expected[expected == 0]).any()


def test_extreme_scales_of_iq1_m():
    """Its fp16 scale lies in the top four bits of four words, the lowest bits first."""
    raw = random_rows("IQ1_M", (4, len(FP16_EXTREMES), 1))
    nibbles = (FP16_EXTREMES[:, None] >> np.array([0, 4, 8, 12], np.uint16)) & 15
    raw[..., 49::2] = (raw[..., 49::2] & 0x0F) | (nibbles << 4).astype(np.uint8)
    expected = reference("IQ1_M", raw)
    assert_same_bits(decode(mx.array(raw), "IQ1_M"), expected)
    assert np.isinf(expected).any()


@pytest.mark.parametrize(("name", "scales"), [("MXFP4", 1), ("NVFP4", 4)])
def test_every_one_byte_scale(name, scales):
    """All 256 scale bytes: MXFP4's two smallest are subnormal in fp32, NVFP4's 0x7F counts as zero."""
    raw = random_rows(name, (256, 4))
    raw.reshape(256, 4, -1)[:, :, :scales] = np.arange(256, dtype=np.uint8)[:, None, None]
    expected = reference(name, raw)
    assert_same_bits(decode(mx.array(raw), name), expected)
    if name == "MXFP4":
        assert (np.abs(expected[expected != 0]) < np.finfo(np.float32).tiny).any()


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_every_sixteen_bit_number(name):
    raw = np.arange(65536, dtype=np.uint16).reshape(256, 256).view(np.uint8)
    assert_same_bits(decode(mx.array(raw), name), reference(name, raw))
    native = {"F16": mx.float16, "BF16": mx.bfloat16}[name]
    assert np.array_equal(np.array(decode(mx.array(raw), name, native).view(mx.uint8)), raw)


def test_fp32_passes_untouched():
    raw = random_rows("F32", (3, 500))
    raw[0, :8] = np.array([1, 0x80000000], np.uint32).view(np.uint8)  # a subnormal, minus zero
    assert np.array_equal(np.array(decode(mx.array(raw), "F32").view(mx.uint8)), raw)


def test_really_quantised_weights():
    weights = np.random.default_rng(1).standard_normal((16, 512)).astype(np.float32)
    done = [n for n in QUANTISED if gguf_can(lambda n: quants.quantize(weights, GGMLQuantizationType[n]), n)]
    assert {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"} <= set(done)
    for name in done:
        raw = quants.quantize(weights, GGMLQuantizationType[name])
        assert_same_bits(decode(mx.array(raw), name), reference(name, raw))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("name", ["BF16", "F16", "Q4_1", "Q6_K", "IQ3_S"])
def test_other_dtypes_are_the_fp32_result_rounded_once(name, dtype):
    raw = mx.array(random_rows(name, (4, 6)))
    found, expected = decode(raw, name, dtype), decode(raw, name).astype(dtype)
    assert found.dtype == dtype
    assert mx.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize("name", NAMES)
def test_no_rows_and_rows_of_nothing(name):
    kind = BY_NAME[name]
    assert decode(mx.zeros((0, 2 * kind.nbytes), mx.uint8), name).shape == (0, 2 * kind.weights)
    nothing = decode(mx.zeros((2, 0), mx.uint8), name)
    mx.eval(nothing)
    assert nothing.shape == (2, 0)


@pytest.mark.parametrize("name", NAMES)
def test_a_window_of_a_larger_map_and_every_other_row(name):
    raw = random_rows(name, (6, 4))
    expected = reference(name, raw)
    window = mx.concatenate([mx.zeros((32,), mx.uint8), mx.array(raw.reshape(-1)), mx.zeros((7,), mx.uint8)])
    rows = window[32 : 32 + raw.size].reshape(raw.shape)
    assert_same_bits(decode(rows, name), expected)
    assert_same_bits(decode(rows[1::2], name), expected[1::2])
    assert_same_bits(decode(rows[2], name), expected[2])


@pytest.mark.parametrize("name", ["Q4_1", "Q5_K", "IQ2_XS"])
@needs_compiler
def test_compiled_equals_eager(name):
    # The codebooks are made while the function is traced; the eager call after it uses the same ones.
    iquants._grid.cache_clear()
    iquants._even_signs.cache_clear()
    raw = random_rows(name, (16, 9))
    expected = reference(name, raw)
    assert_same_bits(mx.compile(lambda rows: decode(rows, name))(mx.array(raw)), expected)
    assert_same_bits(decode(mx.array(raw), name), expected)


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K", "IQ1_M", "MXFP4"])
def test_decoding_inside_a_differentiated_function(name):
    """The gradient of x @ W.T is that with W given dense; the stored bytes have none."""
    raw = tame_rows(name)
    dense = mx.array(reference(name, raw))
    x = mx.array(np.random.default_rng(2).standard_normal((3, dense.shape[1])).astype(np.float32))

    def loss(x, rows):
        return mx.square(x @ decode(rows, name).T).sum()

    expected = mx.grad(lambda x: mx.square(x @ dense.T).sum())(x)
    assert mx.all(mx.isfinite(expected)) and mx.any(expected != 0)
    # The same numbers through the same operations: no tolerance.
    assert mx.array_equal(mx.grad(loss)(x, mx.array(raw)), expected)


@pytest.mark.parametrize("name", ["Q8_1", "Q1_0", "I32", "Q4_2", "nonsense"])
def test_a_type_without_a_codec_is_refused_by_name(name):
    with pytest.raises(UserError) as error:
        decode(mx.zeros((1, 64), mx.uint8), name)
    assert f"type {name} " in str(error.value)
    assert set(str(error.value).rsplit(": ", 1)[1].split(", ")) == DECODABLE


def test_rows_that_are_not_whole_blocks_of_bytes_are_refused():
    with pytest.raises(ValueError, match="Q4_1 stores blocks of 20 bytes: 39 bytes"):
        decode(mx.zeros((2, 39), mx.uint8), "Q4_1")
    with pytest.raises(ValueError, match="uint8"):
        decode(mx.zeros((2, 40), mx.int8), "Q4_1")


def test_type_table_equals_ggufs():
    ours = {(kind.id, kind.name, kind.weights, kind.nbytes) for kind in BLOCK_TYPES.values()}
    theirs = {(int(kind), kind.name, *size) for kind, size in GGML_QUANT_SIZES.items()}
    # Q8_1 (never stored): gguf still has its two scales as fp32; ggml's block_q8_1 has two fp16.
    assert ours - theirs == {(9, "Q8_1", 32, 36)}
    assert theirs - ours == {(9, "Q8_1", 32, 40)}
    assert all(BY_NAME[kind.name] is kind and BLOCK_TYPES[kind.id] is kind for kind in BLOCK_TYPES.values())
    assert not types.REMOVED_TYPES.keys() & BLOCK_TYPES.keys()


def test_row_sizes():
    assert types.row_bytes("Q4_K", 512) == 288
    assert types.row_bytes(BY_NAME["F32"], 3) == 12
    assert types.row_bytes("Q8_0", 0) == 0
    assert types.row_weights("Q4_K", 288) == 512
    with pytest.raises(ValueError, match="Q4_K stores blocks of 256 weights: a row of 300"):
        types.row_bytes("Q4_K", 300)
    with pytest.raises(ValueError, match="-32"):
        types.row_bytes("Q8_0", -32)
    assert types.type_name(12) == "Q4_K"
    assert types.type_name(4) == "Q4_2 (removed from ggml)"
    assert types.type_name(99) == "type 99 (unknown)"


def test_the_type_table_needs_no_mlx():
    code = "import sys, mlxtrain.gguf.types; print([m for m in ('mlx', 'numpy', 'gguf') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
