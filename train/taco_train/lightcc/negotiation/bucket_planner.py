"""Holds gradients until their bucket is complete, so that every pass has the same buckets."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from taco_train.lightcc.negotiation.buckets import ReadyGradient, buckets_of
from taco_train.lightcc.negotiation.requests import Request

logger = logging.getLogger(__name__)
_NUM_PASSES = 3  # that are measured, after one that is not: connections and caches are new in it
# A bucket waits for its last gradient twice as long as the measured passes did, and this much.
_SLACK_SECONDS, _MAX_WAIT_SECONDS = 0.01, 0.5
_MAX_LATE = 2  # in a row; then the gradients are measured again
_MAX_PLANS = 5
_MAX_PASS = 2**16  # units; names that never come again must not fill the memory

Name = tuple[tuple[int, str], ...]
ChooseBytes = Callable[[Sequence[ReadyGradient]], int | None]


@dataclass(frozen=True, slots=True)
class Unit:
    """Requests that run together, and are ready on all ranks.

    Attributes:
        name: the keys of the requests.
        signature: what requests must share to use one buffer.
    """

    name: Name
    signature: Request
    num_bytes: int


@dataclass(slots=True)
class _Bucket:
    """Units that are reduced together.

    Attributes:
        wait_seconds: from its first unit on.
        held: units that are ready, by name.
        due: when it is reduced even if it is incomplete.
        missing: names of a bucket that was reduced without them.
        num_late: how often in a row that happened.
    """

    names: tuple[Name, ...]
    wait_seconds: float
    held: dict[Name, Unit] = field(default_factory=dict)
    due: float = 0.0
    missing: set[Name] = field(default_factory=set)
    num_late: int = 0

    def take(self) -> list[Unit]:
        """What it holds, in the order of its names."""
        taken = [self.held[name] for name in self.names if name in self.held]
        self.held.clear()
        return taken


@dataclass(frozen=True, slots=True)
class _Ready:
    """A unit in a measured pass: seconds since the first unit of the pass."""

    seconds: float
    num_bytes: int
    signature: Request


class BucketPlanner:
    """Measures when gradients are ready, divides them into buckets, and holds them until then.

    A pass ends when a name comes again. Names that are not in every measured pass are not held.

    Args:
        choose_bytes: the size of a bucket for these gradients; None: it is not known yet.
    """

    def __init__(self, choose_bytes: ChooseBytes) -> None:
        self._choose_bytes = choose_bytes
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[Name, _Bucket] = {}
        self._planned: dict[Name, Unit] = {}
        self._passes: list[dict[Name, _Ready]] = []
        self._pass: dict[Name, _Ready] = {}
        self._pass_start = 0.0
        self._num_plans = 0

    @property
    def next_due(self) -> float | None:
        """When `overdue` has units to give; None: none is held."""
        return min((one.due for one in self._buckets if one.held), default=None)

    def add(self, unit: Unit, now: float) -> list[list[Unit]] | None:
        """Buckets to reduce, now that a unit is ready; None: the unit belongs to none."""
        if not self._planned:
            self._measure(unit, now)
        if not self._planned:
            return None
        if self._planned.get(unit.name, unit) != unit:
            return [*self._restart(), [unit]]
        bucket = self._bucket_of.get(unit.name)
        if bucket is None:
            return None
        if unit.name in bucket.missing:
            bucket.missing.remove(unit.name)
            return [[unit]]
        bucket.missing.clear()
        if not bucket.held:
            bucket.due = now + bucket.wait_seconds
        bucket.held[unit.name] = unit
        if len(bucket.held) < len(bucket.names):
            return []
        bucket.num_late = 0
        return [bucket.take()]

    def overdue(self, now: float) -> list[list[Unit]]:
        """Incomplete buckets that have waited for long enough."""
        late = [one for one in self._buckets if one.held and one.due <= now]
        released = []
        for bucket in late:
            bucket.missing = set(bucket.names) - set(bucket.held)
            bucket.num_late += 1
            released.append(bucket.take())
        if any(one.num_late >= _MAX_LATE for one in late):
            released += self._restart()
        return released

    def release(self) -> list[list[Unit]]:
        """Every held unit: a rank waits for one."""
        for bucket in self._buckets:
            bucket.due = 0.0
        return self.overdue(0.0)

    def forget(self, keys: Iterable[tuple[int, str]]) -> None:
        """These requests have failed."""
        failed = set(keys)
        for bucket in self._buckets:
            for name in [one for one in bucket.held if not failed.isdisjoint(one)]:
                del bucket.held[name]

    def _restart(self) -> list[list[Unit]]:
        """Measure again; gives back what is held."""
        released = [one.take() for one in self._buckets if one.held]
        self._buckets, self._bucket_of, self._planned = [], {}, {}
        self._passes, self._pass = [], {}
        return released

    def _measure(self, unit: Unit, now: float) -> None:
        if self._num_plans == _MAX_PLANS:
            return  # the gradients come in another way each time
        if len(self._pass) == _MAX_PASS:
            self._pass = {}
        if unit.name in self._pass:
            self._passes.append(self._pass)
            self._pass = {}
            if len(self._passes) > _NUM_PASSES:
                self._passes = self._passes[-_NUM_PASSES:]
                self._plan()
        if not self._pass:
            self._pass_start = now
        self._pass[unit.name] = _Ready(now - self._pass_start, unit.num_bytes, unit.signature)

    def _plan(self) -> None:
        steady: dict[Name, Unit] = {}
        for name, first in self._passes[0].items():
            unit = Unit(name, first.signature, first.num_bytes)
            if all(_is_same(one.get(name), unit) for one in self._passes):
                steady[name] = unit
        buckets: list[_Bucket] = []
        for signature in dict.fromkeys(unit.signature for unit in steady.values()):
            names = [name for name, unit in steady.items() if unit.signature == signature]
            gradients = [
                ReadyGradient(
                    statistics.median(one[name].seconds for one in self._passes),
                    steady[name].num_bytes,
                )
                for name in names
            ]
            limit = self._choose_bytes(gradients)
            if limit is None:
                return
            found = [
                self._bucket(tuple(names[index] for index in indices))
                for indices in buckets_of(gradients, limit)
            ]
            logger.info(
                "%d gradients of %s in %d buckets of at most %.3g MiB",
                len(names),
                signature.dtype,
                len(found),
                limit / 2**20,
            )
            buckets += found
        self._planned, self._buckets = steady, buckets
        self._bucket_of = {name: one for one in buckets for name in one.names}
        self._num_plans += 1

    def _bucket(self, names: tuple[Name, ...]) -> _Bucket:
        spans = []
        for one in self._passes:
            seconds = [one[name].seconds for name in names]
            spans.append(max(seconds) - min(seconds))
        wait = min(2 * max(spans) + _SLACK_SECONDS, _MAX_WAIT_SECONDS)
        return _Bucket(names, wait)


def _is_same(ready: _Ready | None, unit: Unit) -> bool:
    if ready is None:
        return False
    return (ready.num_bytes, ready.signature) == (unit.num_bytes, unit.signature)
