"""Decides which collectives run, in which order: the part of rank 0, without threads or sockets.

The protocol is Horovod's (arXiv 1802.05799): a collective runs once every rank of its process set
has submitted it under the same name, and small all-reduces of the same kind share a buffer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from taco_train.lightcc.negotiation.bucket_planner import BucketPlanner, Unit
from taco_train.lightcc.negotiation.messages import Batch, Ready
from taco_train.lightcc.negotiation.process_set_table import ProcessSetTable
from taco_train.lightcc.negotiation.requests import Kind, Request

_ITEM_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2}
_NOT_NUMBERED = frozenset({Kind.ALL_GATHER, Kind.ALL_TO_ALL, Kind.ADD_GROUP, Kind.REMOVE_GROUP})
_WITH_ZEROS = frozenset({Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.BROADCAST, Kind.BARRIER})
Key = tuple[int, str]


@dataclass(slots=True)
class _Pending:
    """A name that some ranks wait for.

    Attributes:
        example: the first rank's request.
        since: when that came, in seconds.
        requests: by rank.
        was_reported: whether a stall warning has named it.
    """

    example: Request
    since: float
    requests: dict[int, Request] = field(default_factory=dict)
    was_reported: bool = False


@dataclass(frozen=True, slots=True)
class Stall:
    """A collective that some ranks submitted long ago, and others have not.

    Attributes:
        name: of the collective.
        ready, missing: ranks.
        seconds: since the first rank submitted it.
    """

    name: str
    ready: tuple[int, ...]
    missing: tuple[int, ...]
    seconds: float


class Coordinator:
    """Knows what each rank is ready for.

    Args:
        size: number of ranks.
        fusion_bytes: the size of a fused buffer, at most; 0: nothing is fused.
        num_ids: how many requests may have a number, which is shorter than the request.
        planner: holds gradients until their bucket is complete; None: none is held.
    """

    def __init__(
        self,
        size: int,
        *,
        fusion_bytes: int,
        num_ids: int = 1024,
        planner: BucketPlanner | None = None,
    ) -> None:
        self._size = size
        self._planner = planner
        self.fusion_bytes = fusion_bytes
        self._num_ids = num_ids
        self._process_sets = ProcessSetTable(size)
        self._pending: dict[Key, _Pending] = {}
        self._complete: dict[Key, None] = {}  # in the order of their completion
        self._joined: list[int] = []  # in the order of their joining
        self._left: dict[int, str] = {}  # why, by rank, in the order in which they left
        self._blocked: set[int] = set()
        self._numbered: dict[int, Request] = {}
        self._number_of: dict[Request, int] = {}
        self._last_change = 0.0

    @property
    def num_left(self) -> int:
        """Ranks that have shut down, have failed or are gone."""
        return len(self._left)

    @property
    def next_due(self) -> float | None:
        """When `take_batches` has something to give that no rank has to send first."""
        return None if self._planner is None else self._planner.next_due

    def receive(self, rank: int, ready: Ready, now: float) -> None:
        """Note what a rank is ready for.

        Raises:
            ValueError: the message contradicts what the rank sent before.
        """
        requests = [*map(self._request_of, ready.ids), *ready.requests]
        if requests or ready.joined or ready.leaving:
            self._last_change = now
            self._blocked.discard(rank)
        if ready.blocked:
            self._blocked.add(rank)
        for request in requests:
            pending = self._pending.get(request.key)
            if pending is None:
                pending = self._pending[request.key] = _Pending(request, now)
            if rank in pending.requests:
                raise ValueError(f"rank {rank} submitted {request.name} twice")
            pending.requests[rank] = request
            self._note_if_complete(request.key)
        if ready.joined and rank not in self._joined:
            self._joined.append(rank)
            for key in list(self._pending):
                self._note_if_complete(key)
        if ready.leaving:
            self._left.setdefault(rank, "has shut down")
        if ready.failure:
            self._left.setdefault(rank, f"has failed: {ready.failure}")

    def lose(self, rank: int) -> None:
        """A rank is gone without a word."""
        self._left.setdefault(rank, "is gone: its process has ended, or its link is cut")

    def take_batches(self, now: float) -> list[Batch]:
        """What all ranks run next, in this order."""
        batches = []
        if self._left:
            rank, why = next(iter(self._left.items()))
            batches += self._fail_all(f"rank {rank} {why}")
        keys, self._complete = list(self._complete), {}
        units = self._units(keys)
        for buffer in self._fused(units, now):
            for part in self._by_dtype(buffer):
                batches += self._run(part)
        if len(self._joined) == self._size:
            batches.append(Batch(is_join=True, result=self._joined[-1]))
            self._joined.clear()
        return batches

    def stalls(self, now: float, after_seconds: float) -> list[Stall]:
        """Names that wait longer than this and have not been reported."""
        found = []
        for pending in self._pending.values():
            if pending.was_reported or now - pending.since < after_seconds:
                continue
            pending.was_reported = True
            found.append(self._stall(pending, now))
        return found

    def fail_stalled(self, now: float, after_seconds: float) -> list[Batch]:
        """End what has waited longer than this."""
        keys = [k for k, one in self._pending.items() if now - one.since >= after_seconds]
        return self._fail(keys, f"some ranks have not submitted it for {after_seconds:g} seconds")

    def fail_deadlocked(self, now: float, after_seconds: float) -> list[Batch]:
        """End all if every rank waits, and none has submitted anything for a while."""
        submitted = {rank for one in self._pending.values() for rank in one.requests}
        blocked = self._blocked & submitted  # others wait for a collective that runs
        if len(blocked) + len(self._joined) < self._size or not blocked:
            return []
        if now - self._last_change < after_seconds:
            return []
        self._blocked.clear()
        return self._fail(list(self._pending), "every rank waits, and not for the same names")

    def _request_of(self, number: int) -> Request:
        if number not in self._numbered:
            raise ValueError(f"no request has the number {number}")
        return self._numbered[number]

    def _members(self, key: Key) -> tuple[int, ...]:
        return self._process_sets.members(key[0])

    def _note_if_complete(self, key: Key) -> None:
        waiting, members = self._pending[key].requests, self._members(key)
        if len(waiting) + len(self._joined) < len(members):
            return
        if all(rank in waiting or rank in self._joined for rank in members):
            self._complete[key] = None

    def _units(self, keys: list[Key]) -> Iterator[list[Key]]:
        """Keys that must run together; those of incomplete units wait for the others."""
        labelled: dict[Key, list[Key]] = defaultdict(list)
        for key in keys:
            example = self._pending[key].example
            if not example.together:
                yield [key]
                continue
            label = (example.group, example.together)
            unit = labelled[label]
            unit.append(key)
            if len(unit) == example.num_together and not any(map(self._is_torn, unit)):
                yield labelled.pop(label)
        self._complete = {key: None for unit in labelled.values() for key in unit}

    def _is_torn(self, key: Key) -> bool:
        """Whether ranks have it in groups of different tensors: some are missing on some ranks."""
        groups = {(one.together, one.num_together) for one in self._pending[key].requests.values()}
        return len(groups) > 1

    def _fused(self, units: Iterable[list[Key]], now: float) -> Iterator[list[Key]]:
        """Units of the same kind of sum: planned buckets, and others as long as they fit."""
        open_buffers: dict[Request, tuple[list[Key], int]] = {}
        buffers: list[list[Key]] = []
        for unit in units:
            examples = [self._pending[key].example for key in unit]
            signature = self._signature(examples[0])
            size = sum(map(_bytes, examples))
            if signature is None:
                buffers.append(unit)
                continue
            if (planned := self._planned(unit, signature, size, now)) is not None:
                buffers += planned
                continue
            keys, used = open_buffers.get(signature, ([], 0))
            if not keys or used + size > self.fusion_bytes:
                keys, used = [], 0
                buffers.append(keys)
            keys += unit
            open_buffers[signature] = (keys, used + size)
        yield from buffers
        yield from self._overdue(now)

    def _planned(
        self, unit: list[Key], signature: Request, size: int, now: float
    ) -> list[list[Key]] | None:
        """Planned buckets that are complete with this unit; None: it is in none."""
        if self._planner is None or self._pending[unit[0]].example.is_unnamed:
            return None
        released = self._planner.add(Unit(tuple(unit), signature, size), now)
        return None if released is None else [_keys(one) for one in released]

    def _overdue(self, now: float) -> list[list[Key]]:
        if self._planner is None:
            return []
        late = self._planner.release() if self._blocked else self._planner.overdue(now)
        return [_keys(one) for one in late]

    def _signature(self, first: Request) -> Request | None:
        """What requests must share with this one to use a buffer; None: it shares none."""
        if self.fusion_bytes <= 0 or first.kind is not Kind.ALL_REDUCE or first.op == "adasum":
            return None
        return Request(
            first.kind,
            "",
            first.dtype,
            op=first.op,
            group=first.group,
            device=first.device,
            prescale=first.prescale,
            postscale=first.postscale,
        )

    def _by_dtype(self, keys: list[Key]) -> Iterable[list[Key]]:
        """Keys of tensors that can share memory: a unit may have several dtypes and devices."""
        parts: dict[tuple[str, str], list[Key]] = defaultdict(list)
        for key in keys:
            example = self._pending[key].example
            parts[example.dtype, example.device].append(key)
        return parts.values()

    def _run(self, keys: list[Key]) -> Iterator[Batch]:
        """The batch of a buffer, after a batch for each of its requests that is in error."""
        good: list[Request] = []
        all_numbered = not self._joined
        for key in keys:
            pending = self._take(key)
            request = pending.example
            error = self._error_of(key, pending)
            if error:
                yield Batch(requests=[request], error=error)
                continue
            good.append(request)
            all_numbered = all_numbered and request in self._number_of
        if not good:
            return
        if all_numbered:
            yield Batch(ids=[self._number_of[one] for one in good])
            return
        result = self._process_sets.change(good[0])
        yield Batch(requests=good, new_ids=self._number(good), result=result)

    def _number(self, requests: list[Request]) -> list[int]:
        """Numbers for all of these, or none."""
        new = [one for one in requests if one not in self._number_of]
        if any(one.kind in _NOT_NUMBERED or one.is_unnamed for one in requests):
            return []
        if len(self._numbered) + len(new) > self._num_ids:
            return []
        for one in new:
            number = len(self._numbered)
            self._numbered[number], self._number_of[one] = one, number
        return [self._number_of[one] for one in requests]

    def _error_of(self, key: Key, pending: _Pending) -> str:
        """Why the requests of the ranks cannot run as one collective; "": they can."""
        by_rank, members = pending.requests, self._members(key)
        first = by_rank[min(by_rank)]
        absent = [rank for rank in members if rank not in by_rank]
        if absent and (first.kind not in _WITH_ZEROS or first.op not in ("", "sum", "average")):
            what = " ".join(filter(None, (first.kind, first.op)))
            return (
                f"{what} is not possible after {_ranks(absent)} joined: only sums, averages, "
                "allgather, broadcast and barrier are"
            )
        if first.kind is Kind.BROADCAST and first.root in absent:
            return f"the root rank {first.root} has joined"
        if difference := _difference(by_rank):
            return difference
        if first.kind is Kind.BROADCAST and first.root not in members:
            return f"the root rank {first.root} is not in the process set {list(members)}"
        if first.kind in (Kind.ADD_GROUP, Kind.REMOVE_GROUP):
            return self._process_sets.error_of(first)
        return ""

    def _fail_all(self, reason: str) -> list[Batch]:
        self._complete.clear()
        return self._fail(list(self._pending), reason)

    def _fail(self, keys: list[Key], reason: str) -> list[Batch]:
        batches = []
        if self._planner is not None:
            self._planner.forget(keys)
        for key in keys:
            pending = self._take(key)
            stall = self._stall(pending, pending.since)
            missing = f"; missing ranks: {_list(stall.missing)}" if stall.missing else ""
            error = _difference(pending.requests) or f"{reason}{missing}"
            batches.append(Batch(requests=[pending.example], error=error))
        self._complete = {key: None for key in self._complete if key in self._pending}
        return batches

    def _take(self, key: Key) -> _Pending:
        """A name that ends now; its ranks compute on unless they say again that they wait."""
        pending = self._pending.pop(key)
        self._blocked -= pending.requests.keys()
        return pending

    def _stall(self, pending: _Pending, now: float) -> Stall:
        ready = tuple(sorted(pending.requests))
        missing = tuple(
            rank
            for rank in self._members(pending.example.key)
            if rank not in pending.requests and rank not in self._joined
        )
        return Stall(pending.example.name, ready, missing, now - pending.since)


def _bytes(request: Request) -> int:
    return request.num_elements * _ITEM_BYTES.get(request.dtype, 1)


def _keys(units: Iterable[Unit]) -> list[Key]:
    return [key for unit in units for key in unit.name]


def _difference(requests: dict[int, Request]) -> str:
    """In what the ranks' requests differ and must not, and what each rank sent; "": nothing."""
    some = list(requests.values())
    if some.count(some[0]) == len(some):  # in almost every step
        return ""
    by_rank = dict(sorted(requests.items()))
    first, *others = by_rank.values()
    for other in others:
        if name := first.difference(other):
            return f"ranks differ in {name}: {_values(by_rank, name)}"
    return ""


def _values(by_rank: dict[int, Request], name: str) -> str:
    """ "rank 0 has 3, ranks 1, 2 have 4"."""
    ranks: dict[str, list[int]] = defaultdict(list)
    for rank, request in by_rank.items():
        ranks[request.describe(name)].append(rank)
    return "; ".join(f"{value} on {_ranks(some)}" for value, some in ranks.items())


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {_list(ranks)}"


def _list(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))
