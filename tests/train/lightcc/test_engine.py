"""Engines of several ranks in one process agree over real connections; threads add the numbers."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taco_train.lightcc.engine import Engine, Work
from taco_train.lightcc.errors import CollectiveError, DuplicateNameError
from taco_train.lightcc.negotiation.coordinator import Coordinator
from taco_train.lightcc.negotiation.coordinator_server import CoordinatorServer, StallLimits
from taco_train.lightcc.negotiation.frames import FrameReader, frame
from taco_train.lightcc.negotiation.messages import Ready, decode_batches
from taco_train.lightcc.negotiation.rank_link import RankLink, connect
from taco_train.lightcc.negotiation.requests import Kind, Request
from taco_train.lightcc.timeline import Timeline

TOKEN = bytes(range(32))


class Adder:
    """The sums of threads that call in the same order; an order that differs is an error."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=30)
        self._inputs: dict[int, tuple[list[str], list[float]]] = {}

    def runner(self, rank: int) -> AdderRunner:
        return AdderRunner(self, rank)

    def abort(self) -> None:
        self._barrier.abort()

    def add(self, rank: int, names: list[str], values: list[float]) -> list[float]:
        self._inputs[rank] = names, values
        self._barrier.wait()
        inputs = dict(self._inputs)
        self._barrier.wait()
        assert all(some == names for some, _ in inputs.values())
        return [
            sum(column) for column in zip(*(values for _, values in inputs.values()), strict=True)
        ]


class AdderRunner:
    def __init__(self, adder: Adder, rank: int) -> None:
        self._adder, self._rank = adder, rank

    def run(self, requests: Sequence[Request], works: Sequence[Work | None], result: int) -> None:
        values = [0.0 if work is None else work.input for work in works]
        outputs = self._adder.add(self._rank, [one.name for one in requests], values)
        for work, output in zip(works, outputs, strict=True):
            if work is not None:
                work.output = output

    def abort(self, reason: str) -> None:
        self._adder.abort()


@contextmanager
def engines(size: int, *, fusion_bytes: int = 100, num_ids: int = 8) -> Iterator[list[Engine]]:
    coordinator = Coordinator(size, fusion_bytes=fusion_bytes, num_ids=num_ids)
    server = CoordinatorServer(
        coordinator, size, address="127.0.0.1", token=TOKEN, limits=StallLimits()
    )
    server.start()
    adder = Adder(size)

    def engine(rank: int) -> Engine:
        connection = connect("127.0.0.1", server.port, token=TOKEN, rank=rank)
        return Engine(
            adder.runner(rank),
            lambda on_batch, on_lost: RankLink(
                connection, cycle_seconds=0.0, on_batch=on_batch, on_lost=on_lost
            ),
            Timeline(rank),
        )

    made = [engine(rank) for rank in range(size)]
    try:
        yield made
    finally:
        for one in made:
            one.close()
        server.close()


def request(name: str, kind: Kind = Kind.ALL_REDUCE, **fields: object) -> Request:
    return Request(kind, name, "float32", (4,), op="sum", **fields)  # type: ignore[arg-type]


def on_every_rank(some: list[Engine], run: Callable[[int, Engine], object]) -> list[object]:
    with ThreadPoolExecutor(len(some)) as pool:
        return list(pool.map(run, range(len(some)), some))


@settings(max_examples=15)
@given(
    st.integers(2, 5),
    st.lists(st.integers(0, 30), max_size=30, unique=True),
    st.integers(0, 100),
    st.integers(0, 3),
)
def test_any_order_on_each_rank(size: int, numbers: list[int], seed: int, num_rounds: int) -> None:
    with engines(size) as some:

        def run(rank: int, engine: Engine) -> list[float]:
            found = []
            for i in range(num_rounds + 1):
                order = random.Random(f"{seed} {rank} {i}").sample(numbers, len(numbers))
                works = {n: engine.submit(request(str(n)), float(n + rank)) for n in order}
                found += [engine.wait(works[n]) for n in numbers]
            return found

        expected = [n * size + size * (size - 1) / 2 for n in numbers] * (num_rounds + 1)
        assert on_every_rank(some, run) == [expected] * size


def test_a_joined_rank_adds_zero_until_all_have_joined() -> None:
    with engines(3) as some:

        def run(rank: int, engine: Engine) -> object:
            sums = [engine.wait(engine.submit(request("a"), 1.0)) for _ in range(rank + 1)]
            last = engine.wait(engine.join(request("join", Kind.BARRIER)))
            return sums, last

        sums, last = zip(*on_every_rank(some, run), strict=True)
        assert sums == ([3.0], [3.0, 2.0], [3.0, 2.0, 1.0])
        assert set(last) == {2}


def test_ranks_that_differ_get_the_same_error_and_compute_on() -> None:
    with engines(2) as some:

        def run(rank: int, engine: Engine) -> str:
            work = engine.submit(Request(Kind.ALL_REDUCE, "a", "float32", (rank,), op="sum"), 1.0)
            with pytest.raises(CollectiveError) as caught:
                engine.wait(work)
            assert engine.wait(engine.submit(request("b"), 1.0)) == 2.0
            return str(caught.value)

        errors = on_every_rank(some, run)
        assert errors == ["a: ranks differ in shape: [0] on rank 0; [1] on rank 1"] * 2


def test_a_name_is_pending_once() -> None:
    with engines(2) as some:
        some[0].submit(request("a"), 1.0)
        with pytest.raises(DuplicateNameError, match="'a' is submitted again before"):
            some[0].submit(request("a"), 1.0)


def test_a_group_with_a_pending_name_submits_nothing() -> None:
    with engines(2) as some:
        pending = some[0].submit(request("x.1"), 1.0)
        with pytest.raises(DuplicateNameError, match=r"'x.1' is submitted again before"):
            some[0].submit_all([(request("x.0"), 1.0), (request("x.1"), 2.0)])
        with pytest.raises(DuplicateNameError, match=r"'x.2' is submitted again before"):
            some[0].submit_all([(request("x.2"), 1.0), (request("x.2"), 2.0)])

        def run(rank: int, engine: Engine) -> list[float]:
            works = engine.submit_all([(request("x.0"), 3.0), (request("x.2"), 4.0)])
            works.append(engine.submit(request("x.1"), 1.0) if rank else pending)
            return [engine.wait(work) for work in works]

        assert on_every_rank(some, run) == [[6.0, 8.0, 2.0]] * 2


def test_names_that_differ_do_not_hang() -> None:
    with engines(2) as some:

        def run(rank: int, engine: Engine) -> str:
            with pytest.raises(CollectiveError) as caught:
                engine.wait(engine.submit(request(f"of {rank}"), 1.0))
            return str(caught.value)

        assert on_every_rank(some, run) == [
            f"of {rank}: every rank waits, and not for the same names; missing ranks: {1 - rank}"
            for rank in range(2)
        ]


def test_a_rank_that_leaves_ends_what_the_others_wait_for() -> None:
    with engines(3) as some:
        work = some[0].submit(request("a"), 1.0)
        some[2].close()
        with pytest.raises(CollectiveError, match="rank 2 has shut down"):
            some[0].wait(work)
        with pytest.raises(CollectiveError, match="the rank has shut down"):
            some[2].submit(request("a"), 1.0)


def test_a_connection_without_the_token_is_closed() -> None:
    server = CoordinatorServer(
        Coordinator(1, fusion_bytes=0), 1, address="127.0.0.1", token=TOKEN, limits=StallLimits()
    )
    server.start()
    try:
        with connect("127.0.0.1", server.port, token=bytes(32), rank=0) as connection:
            assert connection.recv(1) == b""
        with connect("127.0.0.1", server.port, token=TOKEN, rank=0) as connection:
            connection.sendall(b"\xff" * 10)
            assert connection.recv(1) == b""
    finally:
        server.close()


def test_a_rank_that_ends_with_unread_messages_is_named() -> None:
    """The coordinator cannot write to it, and learns in the same moment that it is gone."""
    server = CoordinatorServer(
        Coordinator(2, fusion_bytes=0), 2, address="127.0.0.1", token=TOKEN, limits=StallLimits()
    )
    server.start()
    ranks = [connect("127.0.0.1", server.port, token=TOKEN, rank=rank) for rank in range(2)]
    lost, other = ranks
    try:
        reader, received = FrameReader(), 0
        for number in range(24):  # more than the buffers of a connection hold
            requests = [request(f"{number}.{i}.{'x' * 1000}") for i in range(500)]
            for one in ranks:
                one.sendall(frame(Ready(requests=requests).encode()))
            while received < 500 * (number + 1):
                received += sum(len(decode_batches(one)) for one in reader.receive(other) or [])
        lost.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        lost.close()  # resets the connection, as the end of a process with unread data does
        other.sendall(frame(Ready(requests=[request("last")]).encode()))
        frames: list[bytes] | None = []
        while frames == []:
            frames = reader.receive(other)
        assert frames, "the coordinator has ended"
        (batch,) = decode_batches(frames[0])
        assert batch.error.startswith("rank 0 is gone: its process has ended")
    finally:
        for one in ranks:
            one.close()
        server.close()
