"""The command as a user calls it: a process of its own, in an empty directory."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny import CASES, write_tiny

ROOT = Path(__file__).parent.parent.parent
Run = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    # A cache of its own, so that tests neither see nor leave anything.
    return {**os.environ, "PYTHONPATH": str(ROOT), "MLXTRAIN_CACHE": str(tmp_path / "cache")}


@pytest.fixture
def run(tmp_path, environment) -> Run:
    """`run("lora", "--steps", 3)` in an empty directory; numbers and paths become strings."""
    directory = tmp_path / "work"
    directory.mkdir()

    def call(*arguments: object, timeout: float = 300) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "mlxtrain", *map(str, arguments)]
        return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=timeout)

    call.directory = directory
    return call


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("cli") / "tiny.gguf", **CASES["llama"])


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "texts.jsonl"
    rows = [{"text": f"row {i}: " + "the quick brown fox jumps over a lazy dog. " * (1 + i % 3)} for i in range(12)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
