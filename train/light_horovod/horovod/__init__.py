"""LightCC under the import name of Horovod."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taco_train.lightcc.launcher.run_function import run

__version__ = "0.1.0"
__all__ = ["__version__", "run"]


def __getattr__(name: str) -> Any:
    if name == "run":  # its module imports torch
        return import_module("taco_train.lightcc.launcher.run_function").run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
