"""Runs Triton kernels on the CPU, for tests where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from support import faster_triton, interpreted_floats

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def install() -> None:
    """From now on all Triton functions of this process are interpreted, unless there is a GPU.

    TRITON_INTERPRET=1 does the same, but only for what is imported after it is set, Triton's own
    library included, and for child processes too. Here the order of imports does not matter.
    """
    if DEVICE.type == "cuda":
        return
    faster_triton.install()
    interpreted_floats.install()
    JITFunction.run = _run
    JITFunction.__call__ = _call
    interpreter._patch_lang_tensor = _patch_lang_tensor


def _run(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    # Interpreted kernels patch `tl`; what its library functions use is patched here, once a launch.
    scope = interpreter._patch_lang(tl.standard.max.fn)
    try:
        _interpreted(kernel.fn).run(*args, grid=grid, warmup=warmup, **kwargs)
    finally:
        scope.restore()


def _call(function: JITFunction, *args: Any, **kwargs: Any) -> Any:
    return _interpreted(function.fn).rewrite()(*args, **kwargs)


@cache
def _interpreted(function: Callable[..., Any]) -> InterpretedFunction:
    return InterpretedFunction(function)


_patch_as_triton_does = interpreter._patch_lang_tensor


def _patch_lang_tensor(tensor: Any, scope: Any) -> None:
    """Bounds of loops are arrays of one number, which NumPy 2.4 no longer takes for numbers."""
    _patch_as_triton_does(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())
