"""Handles of collectives that run in the background."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from taco_train.lightcc.engine import Work
from taco_train.lightcc.horovod.state import current, pending

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class _Pending:
    works: Sequence[Work]
    finish: Callable[[list[Any]], Any]


def make_handle(works: Sequence[Work], finish: Callable[[list[Any]], Any]) -> int:
    """A handle of these works, whose outputs `finish` makes the result of."""
    handle = next(_numbers)
    pending[handle] = _Pending(works, finish)
    return handle


def poll(handle: int) -> bool:
    """Whether `synchronize` would return at once.

    Raises:
        ValueError: there is no such handle, or it was synchronized.
    """
    return all(work.is_done for work in _of(handle).works)


def synchronize(handle: int) -> Any:
    """Wait for a collective and return its result; the handle is invalid afterwards.

    Raises:
        HorovodInternalError: the collective failed.
        ValueError: there is no such handle, or it was synchronized.
    """
    found = _of(handle)
    del pending[handle]
    engine = current().engine
    return found.finish([engine.wait(work) for work in found.works])


def _of(handle: int) -> _Pending:
    found: _Pending | None = pending.get(handle)
    if found is None:
        raise ValueError(f"handle {handle} is unknown, or was synchronized")
    return found
