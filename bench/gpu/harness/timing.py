"""Times calls on the device.

Calls over different inputs alternate, so that no input is in a cache. On a GPU they are captured
in a CUDA graph whose replays are timed with events, which excludes the host's launch time. Calls
that cannot be captured are timed with events while the host runs ahead of the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

Call = Callable[[], object]

_MIN_SAMPLES, _MAX_SAMPLES = 5, 200
# A replay is long enough for the resolution of events: half a microsecond.
_REPLAY_US = 1000.0
_AHEAD_CYCLES = 4_000_000  # about 2 ms, in which the host queues the timed work


@dataclass(frozen=True, slots=True)
class Timing:
    """Time of one call.

    Attributes:
        us: microseconds, median of the samples.
        spread: from the samples' 10th to their 90th percentile, as a share of the median.
        captured: whether a CUDA graph was replayed.
    """

    us: float
    spread: float
    captured: bool

    def record(self) -> dict[str, float | bool]:
        return {
            "us": round(self.us, 2),
            "spread": round(self.spread, 3),
            "captured": self.captured,
        }


def time_calls(
    calls: Sequence[Call],
    device: torch.device,
    *,
    capture: bool = True,
    sampling_ms: float = 80.0,
) -> Timing:
    """Times one call, averaged over `calls`, which differ only in their inputs.

    Args:
        capture: try a CUDA graph first.
        sampling_ms: approximate time that the device is kept busy.
    """
    if device.type != "cuda":
        return _time_on_host(calls)
    _run(calls)  # compiles
    repeats = max(1, round(_REPLAY_US / _elapsed_us(lambda: _run(calls))))
    graph = _capture(calls, repeats) if capture else None
    if graph is None:
        samples = _samples(lambda: _run(calls), sampling_ms, ahead=True)
        return _summarize(samples, len(calls), captured=False)
    samples = _samples(graph.replay, sampling_ms, ahead=False)
    graph.reset()
    return _summarize(samples, repeats * len(calls), captured=True)


def _run(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


def _capture(calls: Sequence[Call], repeats: int) -> torch.cuda.CUDAGraph | None:
    """Returns a CUDA graph; None if calls wait for the device or allocate by its data."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(repeats):
                _run(calls)
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph


def _samples(run: Call, sampling_ms: float, *, ahead: bool) -> list[float]:
    """Returns the microseconds of each of several runs."""
    first = _elapsed_us(run)
    count = int(np.clip(1000 * sampling_ms / first, _MIN_SAMPLES, _MAX_SAMPLES))
    events = []
    for _ in range(count):
        if ahead:
            torch.cuda._sleep(_AHEAD_CYCLES)
        events.append(_record(run))
    torch.cuda.synchronize()
    return [1000 * start.elapsed_time(end) for start, end in events]


def _elapsed_us(run: Call) -> float:
    start, end = _record(run)
    torch.cuda.synchronize()
    return max(1.0, 1000 * start.elapsed_time(end))


def _record(run: Call) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    return start, end


def _summarize(samples: Sequence[float], num_calls: int, *, captured: bool) -> Timing:
    low, middle, high = np.percentile(samples, (10, 50, 90))
    return Timing(float(middle) / num_calls, float((high - low) / middle), captured)


def _time_on_host(calls: Sequence[Call]) -> Timing:
    """Times one turn on the host, to test the scripts."""
    begun = time.perf_counter()
    _run(calls)
    return Timing(1e6 * (time.perf_counter() - begun) / len(calls), 0.0, captured=False)
