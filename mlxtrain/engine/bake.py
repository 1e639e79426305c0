"""Baking: one function, compiled once where that pays."""

from collections.abc import Callable
from typing import TypeVar

import mlx.core as mx

F = TypeVar("F", bound=Callable)


def compiles() -> bool:
    """Whether functions are compiled here: on a GPU. On the CPU compiling costs a second of C++ a kernel and gains
    nothing (docs/engine.md has the figures), so they run eagerly."""
    return mx.default_device().type == mx.DeviceType.gpu


def bake(function: F, compiled: bool | None = None) -> F:
    """`function` compiled, or itself. `compiled` overrides the choice by device, for tests that hold both forms
    equal."""
    return mx.compile(function) if (compiles() if compiled is None else compiled) else function
