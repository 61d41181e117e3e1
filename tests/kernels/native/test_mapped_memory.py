"""Memory that a thread touches or fills before it is used."""

import ctypes
import gc
import threading
from collections.abc import Iterator
from pathlib import Path

from taco_kernels.native.mapped_memory import HUGE_PAGE, EarlyMemory
from taco_kernels.native.memory import Arena, allocate

SIZE, SPARE = 96 << 20, 8 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def touched() -> EarlyMemory:
    early = EarlyMemory(SIZE, SPARE)
    early._thread.join()
    return early


def test_the_whole_size_is_touched_before_it_is_taken() -> None:
    before = resident_bytes()

    early = touched()

    assert SIZE <= resident_bytes() - before < SIZE + SPARE
    memory = allocate(SIZE, early)
    memory.fill_(1)
    assert memory.data_ptr() % HUGE_PAGE == 0
    assert resident_bytes() - before < SIZE + SPARE


def test_taken_memory_is_zero_wherever_the_touching_ended() -> None:
    for early in (touched(), EarlyMemory(SIZE, SPARE)):
        mapping = early.take(SIZE + SPARE)
        assert mapping is not None
        assert len(mapping) == early.begin + SIZE + SPARE
        assert not any(memoryview(mapping)[:: 1 << 12])
        assert not early._thread.is_alive()


def test_what_is_not_taken_goes_back() -> None:
    before = resident_bytes()

    early = touched()
    mapping = early.take(HUGE_PAGE)

    assert mapping is not None
    assert len(mapping) == early.begin + HUGE_PAGE
    assert resident_bytes() - before < 2 * HUGE_PAGE


def test_memory_that_is_released_goes_back() -> None:
    before = resident_bytes()

    early = touched()
    early.release()

    assert not early.holds(0)
    assert resident_bytes() - before < HUGE_PAGE


def test_memory_is_given_once() -> None:
    early = EarlyMemory(SIZE)

    assert early.holds(100)
    assert early.take(100) is not None
    assert not early.holds(100)
    assert early.take(100) is None


def test_what_the_thread_writes_is_in_the_memory_and_it_ends_when_that_is_taken() -> None:
    written = threading.Event()

    def write(address: int, num_bytes: int) -> Iterator[None]:
        assert num_bytes == HUGE_PAGE
        ctypes.memset(address, 7, 3)
        yield
        written.set()
        while True:
            yield

    early = EarlyMemory(HUGE_PAGE, write=write)
    written.wait()
    memory = allocate(5, early)

    assert memory.tolist() == [7, 7, 7, 0, 0]
    assert memory.data_ptr() == early.address
    assert early.address % HUGE_PAGE == 0


def test_less_than_is_needed_is_not_used() -> None:
    before = resident_bytes()

    too_much = SIZE + SPARE + HUGE_PAGE + 1
    early = touched()
    assert not early.holds(too_much)
    arena = Arena(too_much, early)
    gc.collect()

    assert arena.take(too_much).numel() == too_much
    assert resident_bytes() - before < SPARE
    assert early.take(1) is None
