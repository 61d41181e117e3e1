"""The load generator: arrival times and the limit of requests in flight."""

import asyncio
from itertools import pairwise

import pytest
from tqdm import tqdm

from taco_llm.bench.load import arrival_times, run_load
from taco_llm.bench.timeline import Timeline
from taco_llm.bench.workload import BenchRequest

INF = float("inf")


def gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert arrival_times(5, INF, 1.0, 0) == [0.0] * 5


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_rate_and_burstiness_are_mean_and_spread(burstiness: float) -> None:
    times = arrival_times(20_001, 5.0, burstiness, 7)
    between = gaps(times)
    mean = sum(between) / len(between)
    variance = sum((gap - mean) ** 2 for gap in between) / len(between)
    assert times[0] == 0.0
    assert times == sorted(times)
    assert mean == pytest.approx(1 / 5, rel=0.05)
    assert variance == pytest.approx(mean**2 / burstiness, rel=0.1)  # of a gamma distribution


def test_the_seed_decides_the_times() -> None:
    assert arrival_times(9, 2.0, 1.0, 1) == arrival_times(9, 2.0, 1.0, 1)
    assert arrival_times(9, 2.0, 1.0, 1) != arrival_times(9, 2.0, 1.0, 2)


class Sender:
    """Answers a request once `width` requests, or all remaining ones, are in flight."""

    def __init__(self, width: int, total: int) -> None:
        self.most = 0
        self._width = width
        self._left = total
        self._running = 0
        self._full = asyncio.Event()

    async def send(self, request: BenchRequest, origin: float) -> Timeline:
        self._running += 1
        self.most = max(self.most, self._running)
        if self._running == min(self._width, self._left):
            self._full.set()
        await self._full.wait()
        self._running -= 1
        self._left -= 1
        return Timeline(end=float(request.output_len), prompt_tokens=request.output_len)


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (3, 3), (None, 8)])
async def test_requests_in_flight_are_limited(limit: int | None, most: int) -> None:
    requests = [BenchRequest([1], number, 1) for number in range(8)]
    sender = Sender(most, len(requests))
    with tqdm(total=8, disable=True) as progress:
        timelines, duration = await run_load(sender.send, requests, [0.0] * 8, limit, progress)
    assert sender.most == most
    assert [timeline.prompt_tokens for timeline in timelines] == list(range(8))
    assert duration == 7.0


async def test_requests_are_not_sent_before_their_arrival_time() -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    sent = []

    async def send(request: BenchRequest, origin: float) -> Timeline:
        sent.append(loop.time() - start)
        return Timeline()

    arrivals = [0.0, 0.01, 0.03]
    with tqdm(total=3, disable=True) as progress:
        await run_load(send, [BenchRequest([1], 1, 1)] * 3, arrivals, None, progress)
    assert all(at >= arrival - 1e-3 for at, arrival in zip(sent, arrivals, strict=True))
