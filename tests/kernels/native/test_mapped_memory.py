"""Memory that a thread touches before it is used."""

import gc
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
        assert len(mapping) == SIZE + SPARE
        assert not any(memoryview(mapping)[:: 1 << 12])
        assert not early._thread.is_alive()


def test_what_is_not_taken_goes_back() -> None:
    before = resident_bytes()

    mapping = touched().take(HUGE_PAGE)

    assert mapping is not None
    assert len(mapping) == HUGE_PAGE
    assert resident_bytes() - before < 2 * HUGE_PAGE


def test_memory_is_given_once() -> None:
    early = EarlyMemory(SIZE)

    assert early.take(100) is not None
    assert early.take(100) is None


def test_less_than_is_needed_is_not_used() -> None:
    before = resident_bytes()

    arena = Arena(SIZE + SPARE + 1, early := touched())
    gc.collect()

    assert arena.take(SIZE + SPARE + 1).numel() == SIZE + SPARE + 1
    assert resident_bytes() - before < SPARE
    assert early.take(1) is None
