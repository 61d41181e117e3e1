"""Compiles Triton kernels into the cache on disk without launching them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triton.runtime.jit import JITFunction


@contextmanager
def compile_only() -> Iterator[None]:
    """Turns launches into compilations of the same variant, under the same cache key."""
    launch = JITFunction.run

    def compile_(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return launch(kernel, *args, grid=grid, warmup=True, **kwargs)

    JITFunction.run = compile_
    try:
        yield
    finally:
        JITFunction.run = launch
