"""GGUF reader: the file is mapped read-only and nothing in it is trusted before it is checked.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (v2 and v3, little-endian). Opening walks the header
once and decodes no array; metadata arrays are decoded when asked for. Tensor bytes are views into the map.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mlxtrain.errors import UserError
from mlxtrain.gguf.types import BLOCK_TYPES, BlockType, row_bytes, type_name

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4

_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_SPLIT_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor: its place in the file. `shape` is row-major (rows first; GGUF stores it reversed)."""

    name: str
    type: BlockType
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    path: Path
    map: np.ndarray

    @property
    def raw(self) -> np.ndarray:
        """The blocks as they lie in the file: uint8, shape (rows, bytes per row), read-only, no copy."""
        return self.map[self.offset : self.offset + self.nbytes].reshape(-1, row_bytes(self.type, self.shape[-1]))

    @property
    def weights(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class _Array:
    """A metadata array not decoded yet."""

    kind: int
    count: int
    start: int


class _Cursor:
    """A position in the mapped header; every read is checked against the end of the file."""

    def __init__(self, buffer: np.ndarray, path: Path):
        self.view = memoryview(buffer)
        self.path, self.at, self.end = path, 0, len(buffer)

    def fail(self, message: str) -> UserError:
        return UserError(f"{self.path}: {message}; the file is damaged or not a GGUF, fetch it again")

    def skip(self, count: int, what: str) -> int:
        start = self.at
        if count < 0 or start + count > self.end:
            raise self.fail(f"{what} at byte {start} needs {count} bytes, but the file ends at {self.end}")
        self.at = start + count
        return start

    def number(self, fmt: str, what: str) -> int:
        return struct.unpack_from(fmt, self.view, self.skip(struct.calcsize(fmt), what))[0]

    def string(self, what: str, errors: str = "strict") -> str:
        size = self.number("<Q", what)
        start = self.skip(size, what)
        try:
            return str(self.view[start : start + size], "utf-8", errors)
        except UnicodeDecodeError:
            raise self.fail(f"{what} at byte {start} is not UTF-8") from None

    def value(self, kind: int, what: str) -> Any:
        if kind in _SCALARS:
            dtype = np.dtype(_SCALARS[kind])
            start = self.skip(dtype.itemsize, what)
            value = np.frombuffer(self.view, dtype, 1, start)[0].item()
            return bool(value) if kind == _BOOL else value
        if kind == _STRING:
            return self.string(what, "surrogateescape")
        if kind == _ARRAY:
            return self._array(what)
        raise self.fail(f"{what} has value type {kind}, expected 0 to 12")

    def _array(self, what: str) -> _Array:
        kind, count = self.number("<I", what), self.number("<Q", what)
        array = _Array(kind, count, self.at)
        if kind in _SCALARS:
            self.skip(np.dtype(_SCALARS[kind]).itemsize * count, what)
        elif kind == _STRING:
            if count > (self.end - self.at) // 8:
                raise self.fail(f"{what} claims {count} strings, more than the file can hold")
            self.at = _skip_strings(self.view, self.at, count, self.end)
            if self.at < 0:
                raise self.fail(f"{what} runs past the end of the file")
        else:
            raise self.fail(f"{what} is an array of value type {kind}, expected numbers or strings")
        return array


def _skip_strings(view: memoryview, at: int, count: int, end: int) -> int:
    size_at = struct.Struct("<Q").unpack_from
    for _ in range(count):
        if at + 8 > end:
            return -1
        at += 8 + size_at(view, at)[0]
    return at if at <= end else -1


class Metadata(Mapping[str, Any]):
    """Key-value metadata. Numeric arrays come as read-only NumPy arrays, string arrays as lists of str (bytes that are
    not UTF-8 as lone surrogates), each decoded once, when first asked for."""

    def __init__(self, buffer: np.ndarray, values: dict[str, Any]):
        self._buffer, self._values = buffer, values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if isinstance(value, _Array):
            value = self._values[key] = self._decode(value)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def length(self, key: str) -> int | None:
        """The number of items of an array, without decoding it; None where there is no such array."""
        value = self._values.get(key)
        if isinstance(value, _Array):
            return value.count
        return len(value) if isinstance(value, (list, np.ndarray)) else None

    def _decode(self, array: _Array) -> np.ndarray | list[str]:
        if array.kind != _STRING:
            numbers = np.frombuffer(self._buffer, np.dtype(_SCALARS[array.kind]), array.count, array.start)
            return numbers.astype(bool) if array.kind == _BOOL else numbers
        view, at, size_at = memoryview(self._buffer), array.start, struct.Struct("<Q").unpack_from
        strings = []
        for _ in range(array.count):
            start = at + 8
            at = start + size_at(view, at)[0]
            strings.append(str(view[start:at], "utf-8", "surrogateescape"))
        return strings


def _map(path: Path) -> np.ndarray:
    """The whole file as read-only shared pages. (A private writable map makes the kernel keep a hidden copy on
    macOS.)"""
    if path.is_dir():
        raise UserError(f"{path}: is a directory, expected a GGUF file")
    try:
        size = path.stat().st_size
        if size < 24:
            raise UserError(f"{path}: has {size} bytes, too short for a GGUF header; fetch it again")
        return np.memmap(path, dtype=np.uint8, mode="r")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; give the path of a GGUF file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def _read_shard(path: Path) -> tuple[Metadata, dict[str, Tensor], int]:
    buffer = _map(path)
    cursor = _Cursor(buffer, path)
    magic = bytes(buffer[:4])
    if magic != MAGIC:
        raise UserError(f"{path}: not a GGUF file (it begins with {magic!r}); give the path of a GGUF model")
    cursor.at = 4
    version = cursor.number("<I", "version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        hint = "a big-endian file" if swapped else "write it again with a current llama.cpp"
        raise UserError(f"{path}: GGUF version {version}, expected 2 or 3 ({hint})")
    n_tensors, n_values = cursor.number("<Q", "tensor count"), cursor.number("<Q", "metadata count")
    # The shortest entry of either kind: a tensor is 8 + 1 + 4 + 8 + 4 + 8 bytes, a value 8 + 1 + 4 + 1.
    if n_tensors > cursor.end // 33 or n_values > cursor.end // 14:
        raise cursor.fail(f"the header claims {n_tensors} tensors and {n_values} metadata values, more than fit")
    values: dict[str, Any] = {}
    for index in range(n_values):
        key = cursor.string(f"metadata key {index}")
        if key in values:
            raise cursor.fail(f"metadata key {key!r} occurs twice")
        values[key] = cursor.value(cursor.number("<I", f"type of {key!r}"), f"metadata {key!r}")
    alignment = values.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise cursor.fail(f"general.alignment is {alignment!r}, expected a power of two")
    entries = [_read_entry(cursor, index) for index in range(n_tensors)]
    data_start = -(-cursor.at // alignment) * alignment
    tensors = _place(cursor, buffer, entries, data_start, alignment)
    return Metadata(buffer, values), tensors, version


def _read_entry(cursor: _Cursor, index: int) -> tuple[str, BlockType, tuple[int, ...], int]:
    name = cursor.string(f"name of tensor {index}")
    n_dims = cursor.number("<I", f"dimension count of {name!r}")
    if not 1 <= n_dims <= MAX_DIMS:
        raise cursor.fail(f"tensor {name!r} has {n_dims} dimensions, expected 1 to {MAX_DIMS}")
    dims = [cursor.number("<Q", f"shape of {name!r}") for _ in range(n_dims)]
    type_id = cursor.number("<I", f"type of {name!r}")
    offset = cursor.number("<Q", f"offset of {name!r}")
    block = BLOCK_TYPES.get(type_id)
    if block is None:
        kind = type_name(type_id).removeprefix("type ")
        raise UserError(f"{cursor.path}: tensor {name!r} has block type {kind}, which ggml does not store")
    if any(d == 0 or d >= 2**31 for d in dims):
        raise cursor.fail(f"tensor {name!r} has shape {dims[::-1]}, expected each dimension in 1 to 2^31-1")
    if dims[0] % block.weights:
        raise cursor.fail(
            f"tensor {name!r} has rows of {dims[0]} weights, expected a multiple of {block.weights} for {block.name}"
        )
    return name, block, tuple(dims[::-1]), offset


def _place(cursor: _Cursor, buffer: np.ndarray, entries: list, data_start: int, alignment: int) -> dict[str, Tensor]:
    """Give each entry its bytes; each must be aligned, inside the file, and overlap no other."""
    tensors: dict[str, Tensor] = {}
    for name, block, shape, relative in entries:
        if name in tensors:
            raise cursor.fail(f"tensor {name!r} occurs twice")
        nbytes, offset = row_bytes(block, shape[-1]), data_start + relative
        for dim in shape[:-1]:
            nbytes *= dim
        if relative % alignment:
            raise cursor.fail(f"tensor {name!r} starts at {relative}, expected a multiple of the alignment {alignment}")
        if offset + nbytes > cursor.end:
            raise cursor.fail(
                f"tensor {name!r} needs bytes {offset} to {offset + nbytes}, but the file ends at {cursor.end}"
            )
        tensors[name] = Tensor(
            name=name, type=block, shape=shape, offset=offset, nbytes=nbytes, path=cursor.path, map=buffer
        )
    ordered = sorted(tensors.values(), key=lambda t: t.offset)
    for before, after in pairwise(ordered):
        if before.offset + before.nbytes > after.offset:
            raise cursor.fail(f"tensors {before.name!r} and {after.name!r} overlap at byte {after.offset}")
    return tensors


def _shard_paths(path: Path, metadata: Metadata) -> list[Path]:
    """All files of a split model (`-00001-of-0000N`), in order; only the path itself where it is not split."""
    count = metadata.get("split.count", 0)
    if not count or count == 1:
        return [path]
    match = _SPLIT_NAME.match(path.name)
    if match is None or int(match["count"]) != count:
        raise UserError(
            f"{path}: is one of {count} split files, expected a name like model-00001-of-{count:05d}.gguf; "
            "give the files their original names"
        )
    paths = [path.with_name(f"{match['stem']}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1)]
    missing = [p.name for p in paths if not p.exists()]
    if missing:
        raise UserError(
            f"{path}: split file {missing[0]} is missing ({len(missing)} of {count}); put it beside this one"
        )
    return paths


class GGUF:
    """A checked GGUF model: `metadata`, `tensors` by name in file order, `paths` (several for a split model),
    `version`.

    Raises UserError for anything that is missing, truncated, malformed, out of bounds or inconsistent.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        metadata, tensors, version = _read_shard(self.path)
        self.paths = _shard_paths(self.path, metadata)
        if len(self.paths) > 1:
            metadata, tensors, version = self._read_split()
        self.metadata, self.tensors, self.version = metadata, tensors, version

    def _read_split(self) -> tuple[Metadata, dict[str, Tensor], int]:
        tensors: dict[str, Tensor] = {}
        shards = [_read_shard(p) for p in self.paths]
        for index, (path, (metadata, found, _)) in enumerate(zip(self.paths, shards, strict=True)):
            if metadata.get("split.no") != index or metadata.get("split.count") != len(self.paths):
                raise UserError(
                    f"{path}: says it is split {metadata.get('split.no')} of {metadata.get('split.count')}, expected "
                    f"{index} of {len(self.paths)}; the files of two models are mixed"
                )
            twice = tensors.keys() & found.keys()
            if twice:
                raise UserError(f"{path}: tensor {min(twice)!r} is in two of the split files; fetch them again")
            tensors |= found
        metadata, _, version = shards[0]
        expected = metadata.get("split.tensors.count", len(tensors))
        if expected != len(tensors):
            raise UserError(f"{self.path}: the split files hold {len(tensors)} tensors, expected {expected}")
        return metadata, tensors, version

    @property
    def nbytes(self) -> int:
        """Size of the file, or of all files of a split model, in bytes."""
        return sum(p.stat().st_size for p in self.paths)

    @property
    def architecture(self) -> str:
        return self.key("general.architecture", str)

    def key(self, name: str, kind: type, default: Any = ...) -> Any:
        """A metadata value of the given type; UserError where it is missing (and no default is given) or of another
        type."""
        if name not in self.metadata:
            if default is not ...:
                return default
            raise UserError(
                f"{self.path}: metadata key {name!r} is missing, expected {kind.__name__}; not a model file?"
            )
        value = self.metadata[name]
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise UserError(f"{self.path}: metadata key {name!r} is {type(value).__name__}, expected {kind.__name__}")
        return value
