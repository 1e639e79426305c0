"""Fixtures for files that `tools/fetch.py` fetches; tests that use them carry the marker `real`."""

import importlib.util
from pathlib import Path

import pytest

import mlxtrain  # noqa: F401  before any test imports mlx: it puts the fast BLAS in place

_spec = importlib.util.spec_from_file_location("fetch", Path(__file__).parent.parent / "tools" / "fetch.py")
_fetch = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_fetch)


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    return _fetch.smollm2()


@pytest.fixture(scope="session")
def llama_vocabs() -> Path:
    """The directory of llama.cpp's published vocabularies with their `.inp` and `.out` files."""
    return _fetch.vocabs()


@pytest.fixture(scope="session")
def chitchat_jsonl() -> Path:
    return _fetch.chitchat_jsonl()


@pytest.fixture(scope="session")
def chitchat_json() -> Path:
    return _fetch.chitchat()
