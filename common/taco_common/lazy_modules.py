"""Modules that run when they are first used, not when they are imported."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_STATE = "_lazy_state"


@contextmanager
def lazy_modules(names: Collection[str], *, until: Collection[str] = ()) -> Iterator[None]:
    """Within the block, modules that are imported under these names do not run yet.

    A module runs when an attribute of it is first read, in whatever thread. So what others find in
    it is the same, but its side effects on other modules come later, or never.

    `importlib.util.LazyLoader` has the same purpose, but up to Python 3.11 a second import of a
    module runs it.

    Args:
        names: full names of modules.
        until: modules that need those side effects: whenever one of them is imported, also after
            the block, all modules run first.
    """
    finder = _Finder(frozenset(names), frozenset(until))
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.is_open = False
        if not until:
            sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """Attributes:
    is_open: whether further modules become lazy.
    """

    def __init__(self, names: frozenset[str], until: frozenset[str]) -> None:
        self.is_open = True
        self._names = names
        self._until = until
        self._modules: list[ModuleType] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in self._until:
            self.is_open = False
            while self._modules:
                _run(self._modules.pop(0))
            return None
        if not self.is_open or name not in self._names:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _LazyLoader(spec.loader, self._modules)
        return spec


class _LazyLoader(Loader):
    def __init__(self, loader: Loader, modules: list[ModuleType]) -> None:
        self._loader = loader
        self._modules = modules

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LazyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leaves the work to `_run`. The import system has read what it needs."""
        module.__dict__[_STATE] = _State(self._loader)
        self._modules.append(module)


class _State:
    """Of a module that has not run.

    Attributes:
        lock: of the thread that runs it.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.lock = threading.RLock()
        self.is_running = False


class _LazyModule(ModuleType):
    """Its attributes exist only after it has run, and reading one of them runs it.

    It has no methods: they would hide the module's functions.
    """

    def __getattr__(self, name: str) -> Any:
        _run(self)
        return ModuleType.__getattribute__(self, name)


def _run(module: ModuleType) -> None:
    """Runs a module's code, once. Other threads wait for its end."""
    state: _State | None = module.__dict__.get(_STATE)
    if state is None:
        return
    with state.lock:
        if state.is_running or _STATE not in module.__dict__:
            return  # its own code reads one of its attributes, or another thread has run it
        state.is_running = True
        try:
            if module.__spec__ is not None:
                module.__spec__.loader = module.__loader__ = state.loader
            state.loader.exec_module(module)
        finally:
            state.is_running = False
        del module.__dict__[_STATE]
        module.__class__ = ModuleType
