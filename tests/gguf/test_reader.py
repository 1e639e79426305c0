"""The reader: equal to `gguf.GGUFReader` on sound files, one clear line on any other."""

import struct
from pathlib import Path
from time import perf_counter

import gguf
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxtrain.errors import UserError
from mlxtrain.gguf import mapped
from mlxtrain.gguf.reader import GGUF


def write(path: Path, *, alignment: int | None = None, shapes=((3, 32), (5,), (2, 3, 32))) -> dict[str, np.ndarray]:
    """A small file with every kind of metadata and an uneven tensor layout; returns its tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_uint8("t.u8", 200)
    writer.add_int8("t.i8", -3)
    writer.add_uint64("t.u64", 2**63)
    writer.add_float32("t.f32", 0.1)
    writer.add_float64("t.f64", 0.1)
    writer.add_bool("t.bool", True)
    writer.add_string("t.string", "grüße")
    writer.add_array("t.strings", ["a", "", "日本", "x" * 300])
    writer.add_array("t.ints", [1, -2, 3])
    writer.add_array("t.floats", [0.5, -1.25])
    writer.add_array("t.bools", [True, False])
    stream = np.random.default_rng(0)
    tensors = {f"tensor.{i}": stream.standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)}
    for name, value in tensors.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "sound.gguf"
    write(path)
    return path


@pytest.mark.parametrize("alignment", [None, 64, 4096])
def test_reads_what_was_written(tmp_path, alignment):
    tensors = write(tmp_path / "m.gguf", alignment=alignment)
    file = GGUF(tmp_path / "m.gguf")
    meta = file.metadata
    assert (meta["t.u8"], meta["t.i8"], meta["t.u64"], meta["t.bool"]) == (200, -3, 2**63, True)
    assert meta["t.f32"] == np.float32(0.1) and meta["t.f64"] == 0.1 and meta["t.string"] == "grüße"
    assert meta["t.strings"] == ["a", "", "日本", "x" * 300] and meta.length("t.strings") == 4
    assert meta["t.ints"].tolist() == [1, -2, 3] and meta["t.floats"].tolist() == [0.5, -1.25]
    assert meta["t.bools"].tolist() == [True, False]
    for name, value in tensors.items():
        found = file.tensors[name]
        assert found.shape == value.shape and found.offset % (alignment or 32) == 0
        assert np.array_equal(found.raw.view(np.float32).reshape(value.shape), value)
        assert np.array_equal(np.array(mapped.blocks(found).view(mx.float32)).reshape(value.shape), value)


def test_the_map_cannot_be_written(sound):
    raw = GGUF(sound).tensors["tensor.0"].raw
    with pytest.raises(ValueError, match="read-only"):
        raw[0, 0] = 1
    before = sound.read_bytes()
    array = mapped.blocks(GGUF(sound).tensors["tensor.0"])
    array[:] = 0  # MLX writes into its own memory
    mx.eval(array)
    assert sound.read_bytes() == before


def test_rows_are_looked_up_without_the_rest(sound):
    tensors = mapped.MappedTensors(GGUF(sound).tensors)
    ids = np.array([[2, 0], [1, 2]])
    rows = tensors.rows("tensor.0", ids).view(mx.float32)
    whole = np.array(tensors["tensor.0"].view(mx.float32))
    assert np.array_equal(np.array(rows), whole[ids])


def test_version_2_is_read(tmp_path, sound):
    data = bytearray(sound.read_bytes())
    data[4:8] = struct.pack("<I", 2)
    (tmp_path / "v2.gguf").write_bytes(data)
    assert GGUF(tmp_path / "v2.gguf").version == 2


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("zero length", lambda d: b"", "too short"),
        ("short", lambda d: d[:10], "too short"),
        ("wrong magic", lambda d: b"GGML" + d[4:], "not a GGUF file"),
        ("a zip", lambda d: b"PK\3\4" + bytes(60), "not a GGUF file"),
        ("version 1", lambda d: d[:4] + struct.pack("<I", 1) + d[8:], "version 1"),
        ("version 4", lambda d: d[:4] + struct.pack("<I", 4) + d[8:], "version 4"),
        ("big-endian", lambda d: d[:4] + struct.pack(">I", 3) + d[8:], "big-endian"),
        ("cut in the header", lambda d: d[:200], "ends at 200"),
        ("cut in the tensors", lambda d: d[:-64], "needs bytes"),
        ("absurd tensor count", lambda d: d[:8] + struct.pack("<Q", 2**60) + d[16:], "claims"),
        ("absurd metadata count", lambda d: d[:16] + struct.pack("<Q", 2**60) + d[24:], "claims"),
        ("absurd string", lambda d: d[:24] + struct.pack("<Q", 2**63) + d[32:], "needs 9223372036854775808 bytes"),
        (
            "unknown value type",
            lambda d: d.replace(b"t.u8" + struct.pack("<I", 0), b"t.u8" + struct.pack("<I", 99)),
            "type 99",
        ),
    ],
)
def test_damaged_files_are_named(tmp_path, sound, name, change, message):
    path = tmp_path / "damaged.gguf"
    path.write_bytes(change(sound.read_bytes()))
    with pytest.raises(UserError, match=message) as caught:
        GGUF(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def _patch_tensor(data: bytes, name: str, field: str, value: int) -> bytes:
    """Overwrite one field of a two-dimensional tensor's entry."""
    entry = data.index(struct.pack("<Q", len(name)) + name.encode()) + 8 + len(name)
    at, fmt = {"dims": (0, "<I"), "columns": (4, "<Q"), "rows": (12, "<Q"), "type": (20, "<I"), "offset": (24, "<Q")}[
        field
    ]
    out = bytearray(data)
    struct.pack_into(fmt, out, entry + at, value)
    return bytes(out)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("dims", 5, "5 dimensions"),
        ("dims", 0, "0 dimensions"),
        ("columns", 0, "each dimension"),
        ("columns", 2**40, "each dimension"),
        ("rows", 2**30, "needs bytes"),
        ("type", 77, r"block type 77 \(unknown\)"),
        ("type", 12, "multiple of 256 for Q4_K"),
        ("offset", 7, "multiple of the alignment"),
        ("offset", 2**62, "needs bytes"),
        ("offset", 384, "overlap"),
    ],
)
def test_tensors_out_of_bounds_are_named(tmp_path, sound, field, value, message):
    path = tmp_path / "damaged.gguf"
    path.write_bytes(_patch_tensor(sound.read_bytes(), "tensor.0", field, value))
    with pytest.raises(UserError, match=message):
        GGUF(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_gets_through_as_another_error(tmp_path, sound, data):
    """Any few bytes changed: either it still reads, or a UserError says why. Never anything else, never a hang."""
    content = bytearray(sound.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "fuzzed.gguf"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        file = GGUF(path)
        for key in file.metadata:
            file.metadata[key]
        for tensor in file.tensors.values():
            tensor.raw.sum()
    except UserError:
        pass


def test_missing_and_directory(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        GGUF(tmp_path / "none.gguf")
    with pytest.raises(UserError, match="directory"):
        GGUF(tmp_path)


def _write_split(tmp_path: Path, count: int) -> list[Path]:
    paths = [tmp_path / f"m-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
    for i, path in enumerate(paths):
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", count)
        writer.add_tensor(f"tensor.{i}", np.full((2, 32), i, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def test_split_files_are_one_model(tmp_path):
    paths = _write_split(tmp_path, 3)
    file = GGUF(paths[0])
    assert list(file.tensors) == ["tensor.0", "tensor.1", "tensor.2"] and file.paths == paths
    assert [t.raw.view(np.float32)[0, 0] for t in file.tensors.values()] == [0, 1, 2]
    assert file.nbytes == sum(p.stat().st_size for p in paths)


def test_split_files_missing_or_mixed_are_named(tmp_path):
    paths = _write_split(tmp_path, 3)
    content = paths[1].read_bytes()
    paths[1].unlink()
    with pytest.raises(UserError, match=r"m-00002-of-00003\.gguf is missing"):
        GGUF(paths[0])
    paths[1].write_bytes(paths[2].read_bytes())
    with pytest.raises(UserError, match="two models are mixed"):
        GGUF(paths[0])
    paths[1].write_bytes(content)
    paths[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(UserError, match="original names"):
        GGUF(tmp_path / "renamed.gguf")


@pytest.mark.real
def test_a_large_vocabulary_opens_at_once(smollm2_gguf):
    start = perf_counter()
    file = GGUF(smollm2_gguf)
    seconds = perf_counter() - start
    assert len(file.tensors) == 272 and file.metadata.length("tokenizer.ggml.tokens") == 49152
    # 0.04 s here; GGUFReader takes 3 to 6 s for the same.
    assert seconds < 1


@pytest.mark.real
def test_equals_gguf_reader_on_a_real_file(smollm2_gguf):
    ours, theirs = GGUF(smollm2_gguf), gguf.GGUFReader(smollm2_gguf)
    assert list(ours.tensors) == [t.name for t in theirs.tensors]
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name]
        assert found.shape == tuple(int(d) for d in tensor.shape)[::-1]
        assert found.type.name == tensor.tensor_type.name and found.offset == tensor.data_offset
    for key, field in theirs.fields.items():
        if key.startswith("GGUF."):
            continue
        value = ours.metadata[key]
        expected = field.contents()
        if isinstance(expected, list):
            assert list(value) == expected
        else:
            assert value == expected
