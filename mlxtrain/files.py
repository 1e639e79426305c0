"""Files that are either whole or absent, and digests of large ones."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path


def fsync_directory(path: Path) -> None:
    """Make a rename inside `path` durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`. Leaving normally makes it durable and renames it to `path`; an exception removes
    it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        fsync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape")  # file names may hold any bytes


def sha256(paths: Sequence[Path]) -> str:
    """The SHA-256 of the files' bytes, one after the other, in hexadecimal."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()


def sampled_sha256(paths: Sequence[Path], samples: int = 256, size: int = 4096) -> str:
    """A digest of the files' sizes, beginnings and evenly spaced samples: tells two models apart in milliseconds, where
    a whole digest takes seconds a gigabyte. It proves nothing against intent."""
    digest = hashlib.sha256()
    for path in paths:
        length = path.stat().st_size
        digest.update(str(length).encode())
        with path.open("rb") as file:
            for index in range(samples):
                file.seek(index * max(0, length - size) // (samples - 1))
                digest.update(file.read(size))
    return digest.hexdigest()


def cache_directory() -> Path:
    """Where things that can be made again are kept: $MLXTRAIN_CACHE, else the platform's cache directory."""
    if chosen := os.environ.get("MLXTRAIN_CACHE"):
        return Path(chosen)
    if os.uname().sysname == "Darwin":
        return Path.home() / "Library" / "Caches" / "mlxtrain"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlxtrain"


def cached_sha256(paths: Sequence[Path]) -> str:
    """As `sha256`, remembered by path, size and modification time. A cache that cannot be read or written is done
    without."""
    stats = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in paths]
    key, store = json.dumps(stats), cache_directory() / "sha256.json"
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(store.read_text())
    if not isinstance(known, dict):
        known = {}
    if key not in known:
        known[key] = sha256(paths)
        with contextlib.suppress(OSError):
            store.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=store.parent, delete=False) as file:
                json.dump(known, file)
            os.replace(file.name, store)
    return known[key]
