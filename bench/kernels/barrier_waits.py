"""Time that threads lose at barriers, by the op that ends with the barrier."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from bench.kernels.traced_step import OpName, Spans, TracedStep
from taco_kernels.cpu.trace import SpanKind

_END = "end of the region"
_START = "start of the region"
_LOGITS = "logits"
_OUTSIDE = "between ops"


@dataclass(frozen=True, slots=True)
class LostTime:
    """What all threads lose together in one step at the barriers of one kind.

    Attributes:
        barrier: the op, in all layers, or the start or end of a region.
        count: barriers of this kind in a step.
        share: of the time of all threads.
    """

    barrier: str
    count: int
    milliseconds: float
    share: float


def lost_times(steps: Sequence[TracedStep], names: list[OpName]) -> list[LostTime]:
    """The barriers at which the most time is lost come first.

    The time of a barrier is its median over the steps that have it: a thread that the system
    suspends in one step does not count.
    """
    whole = median(step.end - step.begin for step in steps) * len(steps[0].threads)
    waits: dict[tuple[str, int], list[int]] = defaultdict(list)
    for step in steps:
        num_seen: Counter[str] = Counter()
        for name, nanoseconds in _waits_of(step, names):
            waits[name, num_seen[name]].append(nanoseconds)
            num_seen[name] += 1
    lost: dict[str, list[float]] = defaultdict(list)
    for (name, _), nanoseconds_of_steps in waits.items():
        lost[name].append(median(nanoseconds_of_steps))
    found = [
        LostTime(name, len(times), sum(times) / 1e6, sum(times) / whole)
        for name, times in lost.items()
    ]
    return sorted(found, key=lambda one: -one.milliseconds)


def _waits_of(step: TracedStep, names: list[OpName]) -> list[tuple[str, int]]:
    """Each barrier of a step in order, with the nanoseconds that all threads wait at it.

    All threads pass the same barriers in the same order.
    """
    threads = [list(_thread_waits(spans, names)) for spans in step.threads]
    return [
        (at_one[0][0], sum(nanoseconds for _, nanoseconds in at_one))
        for at_one in zip(*threads, strict=True)
    ]


def _thread_waits(spans: Spans, names: list[OpName]) -> Iterator[tuple[str, int]]:
    """Spans come in the order of their ends: waits of an op come before it."""
    pending: list[tuple[int, int]] = []  # begin, nanoseconds
    for span in spans:
        nanoseconds = int(span["end"] - span["begin"])
        kind = SpanKind(span["kind"])
        if kind == SpanKind.START:
            yield _START, nanoseconds
        elif kind == SpanKind.WAIT:
            pending.append((int(span["begin"]), nanoseconds))
        elif kind in (SpanKind.OP, SpanKind.LOGITS, SpanKind.REGION):
            name = {SpanKind.LOGITS: _LOGITS, SpanKind.REGION: _END}.get(kind)
            name = name or names[span["index"]].op
            for begin, waited in pending:
                yield (name if begin >= span["begin"] else _OUTSIDE), waited
            pending.clear()
