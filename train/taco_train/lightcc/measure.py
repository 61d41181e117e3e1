"""Measures what the cost model needs, in the way in which all-reduces use it.

Of each kind of step it finds alpha (latency) and beta (seconds per byte), and keeps them in a file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

import torch

from taco_train.collective.communicator import Communicator
from taco_train.collective.levels import Layout, make_layout
from taco_train.collective.library import POINTER, REDUCTIONS, TYPES, load
from taco_train.lightcc.cost_cache import CostCache, from_dict
from taco_train.lightcc.cost_model import Costs, Line

_SMALL_BYTES, _FIRST_BYTES, _MAX_BYTES = 64, 256 << 10, 8 << 20
# Messages grow until one takes this long, and that many times as long as a small one: the queues of
# a link hide its rate from shorter ones.
_LARGE_SECONDS, _LATENCIES = 0.02, 16
_NUM_SMALL, _NUM_LARGE = 8, 2
_NUM_CHECKS, _TOLERANCE = 3, 1.25
_CONVERTED_BYTES = 1 << 20
_VALUES_PER_SELECTED = 100  # TopK's default ratio

# Given bytes, makes the buffers of a step, and returns what runs it: only that is timed.
Step = Callable[[int], Callable[[], None]]


def measure(communicator: Communicator, cache: CostCache) -> Costs:
    """The costs of the communicator's ranks: from the cache where they still hold, else measured.

    All ranks call it together, and get the same numbers, those of the slowest rank. Every rank does
    what it does in an all-reduce, at the same time as the others, so that a link or a core that
    several share shows. It takes some 0.2 seconds, on slow links up to 1; to see whether cached
    numbers hold takes a few exchanges.

    Args:
        cache: rank 0's counts; used where there are several hosts.

    Raises:
        CommunicationError: a rank is gone.
    """
    layout = make_layout(communicator.rank, communicator.placement.hosts, communicator.levels)
    if len(layout.domains) == 1:
        return _measure(communicator, layout)
    placement = communicator.placement
    key = json.dumps([placement.hosts, placement.addresses, communicator.levels.intra_size])
    cached = _broadcast(communicator, cache.get(key) if communicator.rank == 0 else None)
    if cached is not None and _still_holds(communicator, layout.domains, cached):
        return cached
    costs = _measure(communicator, layout)
    if communicator.rank == 0:
        cache.put(key, costs)
    return costs


def _broadcast(communicator: Communicator, costs: Costs | None) -> Costs | None:
    """Rank 0's costs."""
    text = b"" if costs is None else json.dumps(asdict(costs)).encode()
    length = torch.tensor([len(text)])
    communicator.broadcast(length, 0)
    if not length.item():
        return None
    if communicator.rank:
        text = bytes(int(length.item()))
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    communicator.broadcast(data, 0)
    return from_dict(json.loads(bytes(data.tolist())))


def _still_holds(
    communicator: Communicator, domains: Sequence[tuple[int, ...]], costs: Costs
) -> bool:
    """Whether exchanges between hosts take as long as the costs say, once in a few times at least.

    Exchanges of a connection that was idle may be slow at first, and other work delays them.
    """
    step, line = _hosts_step(communicator, domains), costs.hosts
    enough = max(_LARGE_SECONDS, _LATENCIES * line.latency)
    wanted = (enough - line.latency) / line.per_byte if line.per_byte else _MAX_BYTES
    size = int(min(max(wanted, _FIRST_BYTES), _MAX_BYTES))
    run = step(size)
    for _ in range(_NUM_CHECKS):
        seconds = _seconds(communicator, run, 1)
        if line.seconds(size) / _TOLERANCE < seconds < line.seconds(size) * _TOLERANCE:
            return True
    return False


def _measure(communicator: Communicator, layout: Layout) -> Costs:
    ring = hosts = Line(0.0, 0.0)
    if len(layout.domains) > 1:
        ring = _line(communicator, _ring_step(communicator, layout.domains))
        hosts = _line(communicator, _hosts_step(communicator, layout.domains))
    return Costs(
        num_hosts=len(layout.domains),
        ranks_per_host=layout.num_shards,
        ring=ring,
        hosts=hosts,
        memory=_line(communicator, _memory_step(communicator)),
        convert_per_byte=_convert_per_byte(communicator),
        top_k=_top_k(communicator),
    )


def _memory_step(communicator: Communicator) -> Step:
    """An all-reduce in a host's shared memory."""

    def prepare(num_bytes: int) -> Callable[[], None]:
        return partial(communicator.sum_inside, _buffer(num_bytes))

    return prepare


def _ring_step(communicator: Communicator, domains: Sequence[tuple[int, ...]]) -> Step:
    """A step of the flat ring."""
    order = [rank for domain in domains for rank in domain]
    place = order.index(communicator.rank)
    before, after = order[place - 1], order[(place + 1) % len(order)]

    def prepare(num_bytes: int) -> Callable[[], None]:
        sends, receives = [(after, _buffer(num_bytes))], [(before, _buffer(num_bytes))]
        return partial(communicator.exchange, sends, receives)

    return prepare


def _hosts_step(communicator: Communicator, domains: Sequence[tuple[int, ...]]) -> Step:
    """An exchange of shards between hosts; bytes are those that leave a host."""
    num_shards = min(map(len, domains))
    index = next(one.index(communicator.rank) for one in domains if communicator.rank in one)
    peers = [domain[index] for domain in domains] if index < num_shards else []
    others = [rank for rank in peers if rank != communicator.rank]

    def prepare(num_bytes: int) -> Callable[[], None]:
        part = max(num_bytes // (num_shards * (len(domains) - 1)), 1)
        sends = [(rank, _buffer(part)) for rank in others]
        receives = [(rank, _buffer(part)) for rank in others]
        return partial(communicator.exchange, sends, receives)

    return prepare


def _convert_per_byte(communicator: Communicator) -> float:
    count = _CONVERTED_BYTES // 4
    wide, narrow = torch.ones(count), torch.ones(count, dtype=torch.float16)
    float32, float16 = TYPES[torch.float32], TYPES[torch.float16]

    def convert() -> None:
        library = load()
        library.taco_collective_convert(float16, narrow.data_ptr(), float32, wide.data_ptr(), count)
        library.taco_collective_convert(float32, wide.data_ptr(), float16, narrow.data_ptr(), count)

    return _seconds(communicator, convert, _NUM_SMALL) / _CONVERTED_BYTES


def _top_k(communicator: Communicator) -> Line:
    """What an owner does beside sums in memory; what decoding adds is little at such ratios."""
    library, generator = load(), torch.Generator().manual_seed(communicator.rank)
    float32, add = TYPES[torch.float32], REDUCTIONS["sum"]

    def seconds(num_bytes: int) -> float:
        count = num_bytes // 4
        residual, values = torch.randn(2, count, generator=generator)
        selected = max(count // _VALUES_PER_SELECTED, 1)
        capacity = library.taco_collective_encoded_capacity(count, selected, 0)
        encoded = torch.zeros(capacity, dtype=torch.uint8)
        kept, added, message = (one.data_ptr() for one in (residual, values, encoded))
        inputs = (POINTER * 2)(kept, added)

        def run() -> None:
            library.taco_collective_reduce(float32, add, kept, inputs, 2, count, 0, None)
            library.taco_collective_encode(kept, None, count, selected, 0, message)

        return _seconds(communicator, run, _NUM_SMALL)

    latency = seconds(_SMALL_BYTES)
    return Line(latency, max(seconds(_CONVERTED_BYTES) - latency, 0.0) / _CONVERTED_BYTES)


def _line(communicator: Communicator, step: Step) -> Line:
    def seconds(num_bytes: int, repeats: int) -> float:
        return _seconds(communicator, step(num_bytes), repeats)

    latency = seconds(_SMALL_BYTES, _NUM_SMALL)
    enough = max(_LARGE_SECONDS, _LATENCIES * latency)
    size = _FIRST_BYTES
    while seconds(size, 1) < enough and size < _MAX_BYTES:
        size *= 2  # meanwhile TCP finds out how fast the link is
    return Line(latency, max(seconds(size, _NUM_LARGE) - latency, 0.0) / size)


def _seconds(communicator: Communicator, call: Callable[[], None], repeats: int) -> float:
    """The least time of the slowest rank: other work on cores and links only adds."""
    slowest = []
    for _ in range(repeats):
        communicator.barrier()
        begun = time.perf_counter()
        call()
        seconds = torch.tensor([time.perf_counter() - begun], dtype=torch.float64)
        communicator.all_reduce(seconds, "max")
        slowest.append(seconds.item())
    return min(slowest)


def _buffer(num_bytes: int) -> torch.Tensor:
    """Memory that is written already: the system maps pages on the first write."""
    return torch.zeros(max(num_bytes // 4, 1))
