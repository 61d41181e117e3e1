"""Device activity while some code runs, from the trace of torch's profiler."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_RUNTIME = frozenset({"cuda_runtime", "cuda_driver"})
_NUM_TOP = 12


@dataclass(slots=True)
class Trace:
    """Filled when the traced code has ended.

    Attributes:
        idle_share: share of the span in which the device did nothing.
        span_ms: time from the device's first work to its last.
        waits_ms: time that host threads spent in calls that wait for the device.
        top: the slowest kernels, with their milliseconds and call counts.
    """

    idle_share: float = 0.0
    span_ms: float = 0.0
    waits_ms: float = 0.0
    top: list[dict[str, Any]] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        return {
            "idle_share": round(self.idle_share, 4),
            "span_ms": round(self.span_ms, 2),
            "waits_ms": round(self.waits_ms, 2),
            "top": self.top,
        }


@contextmanager
def traced(device: torch.device, *, trim: float = 0.0) -> Iterator[Trace]:
    """Traces the device's work; the caller waits for the device before it leaves the context.

    Args:
        device: on a CPU the trace is empty.
        trim: share of the span to leave out at both ends, which are not steady.
    """
    found = Trace()
    is_gpu = device.type == "cuda"
    activity = ProfilerActivity.CUDA if is_gpu else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiler:
        yield found
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    summarize(events, found, trim)


def summarize(events: Iterable[dict[str, Any]], found: Trace, trim: float = 0.0) -> None:
    """Summarizes events in the Trace Event Format: `cat`, `name`, `ts` and `dur` in
    microseconds.
    """
    timed = [event for event in events if "dur" in event]
    work = sorted(
        (event["ts"], event["ts"] + event["dur"], event["name"])
        for event in timed
        if event.get("cat") in _ON_DEVICE
    )
    if not work:
        return
    first, last = work[0][0], max(end for _, end, _ in work)
    first, last = first + trim * (last - first), last - trim * (last - first)
    work = [(start, end, name) for start, end, name in work if start >= first and end <= last]
    busy = _union([(start, end) for start, end, _ in work])
    found.span_ms = (last - first) / 1e3
    found.idle_share = 1 - busy / (last - first)
    found.waits_ms = (
        sum(
            event["dur"]
            for event in timed
            if event.get("cat") in _RUNTIME and "Synchronize" in event["name"]
        )
        / 1e3
    )
    found.top = _top(work)


def _union(intervals: Sequence[tuple[float, float]]) -> float:
    """Returns the total length covered by intervals that are sorted by start."""
    covered, reached = 0.0, float("-inf")
    for start, end in intervals:
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def _top(work: Sequence[tuple[float, float, str]]) -> list[dict[str, Any]]:
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for start, end, name in work:
        totals[name][0] += (end - start) / 1e3
        totals[name][1] += 1
    ranked = sorted(totals.items(), key=lambda item: -item[1][0])[:_NUM_TOP]
    return [
        {"name": name[:80], "ms": round(ms, 3), "count": int(count)} for name, (ms, count) in ranked
    ]
