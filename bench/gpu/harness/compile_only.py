"""Triton kernels compiled and kept in the cache on disk, and not launched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triton.runtime.jit import JITFunction


@contextmanager
def compile_only() -> Iterator[None]:
    """Launches inside compile the variant that they would run, under the same key of the cache."""
    launch = JITFunction.run

    def compile_(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return launch(kernel, *args, grid=grid, warmup=True, **kwargs)

    JITFunction.run = compile_
    try:
        yield
    finally:
        JITFunction.run = launch
