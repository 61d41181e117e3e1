import gc
from pathlib import Path

import pytest
import torch

from taco_kernels.native.mapped_memory import HUGE_PAGE
from taco_kernels.native.memory import Arena, Scratch, allocate, huge_page_bytes


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("num_bytes", [0, 1, 63, 4097, HUGE_PAGE - 1, HUGE_PAGE, 5 * HUGE_PAGE + 3])
def test_memory_is_aligned_and_can_be_written(num_bytes: int) -> None:
    memory = allocate(num_bytes)

    assert memory.dtype == torch.uint8
    assert memory.shape == (num_bytes,)
    assert memory.data_ptr() % (HUGE_PAGE if num_bytes >= HUGE_PAGE else 64) == 0
    memory.fill_(7)
    assert memory.sum() == 7 * num_bytes


def test_memory_goes_with_its_last_view() -> None:
    size = 64 << 20
    before = resident_bytes()

    view = allocate(size).fill_(1)[-8:]
    held = resident_bytes() - before
    kept = view.clone()
    del view
    gc.collect()

    assert held >= size
    assert resident_bytes() - before < size // 2
    assert kept.tolist() == [1] * 8


def test_memory_that_nobody_touches_takes_none() -> None:
    before = resident_bytes()

    memory = allocate(4 << 30)

    assert resident_bytes() - before < 16 << 20
    assert memory[-1] == 0


def test_an_address_range_that_cannot_be() -> None:
    with pytest.raises(MemoryError, match="cannot map"):
        allocate(1 << 60)


def test_parts_of_an_arena_are_aligned_and_lie_apart() -> None:
    arena = Arena(3 * HUGE_PAGE)

    parts = [arena.take(num_bytes) for num_bytes in (1, 64, HUGE_PAGE, 0, 100)]
    for number, part in enumerate(parts):
        part.fill_(number)

    assert [part.numel() for part in parts] == [1, 64, HUGE_PAGE, 0, 100]
    assert all(part.data_ptr() % 64 == 0 for part in parts)
    assert [part.unique().tolist() for part in parts] == [[0], [1], [2], [], [4]]
    assert parts[4].data_ptr() - parts[0].data_ptr() == 128 + HUGE_PAGE


def test_an_arena_gives_no_more_than_it_has() -> None:
    arena = Arena(200)
    arena.take(100)

    with pytest.raises(MemoryError, match="80 bytes do not fit: 72 are left"):
        arena.take(80)
    assert arena.take(72).numel() == 72


def test_scratch_is_kept_until_it_is_too_small() -> None:
    scratch = Scratch()

    small = scratch.reserve(1000)
    assert scratch.reserve(10) == small
    large = scratch.reserve(HUGE_PAGE)
    assert large % HUGE_PAGE == 0
    assert scratch.reserve(1000) == large


def test_huge_pages_are_counted(tmp_path: Path) -> None:
    rollup = tmp_path / "rollup"
    rollup.write_text("Rss:  5000 kB\nAnonHugePages:      4096 kB\nShmemPmdMapped: 0 kB\n")

    assert huge_page_bytes(rollup) == 4096 * 1024
    assert huge_page_bytes(tmp_path / "none") == 0


@pytest.mark.parametrize("num_bytes", [1000, 200_000, HUGE_PAGE + 5])
def test_an_arena_maps_a_file_of_its_size(tmp_path: Path, num_bytes: int) -> None:
    arena, file = Arena(num_bytes), tmp_path / "content"
    part = arena.take(100)
    part.fill_(7)
    content = bytes(i % 251 for i in range(num_bytes))
    file.write_bytes(content)
    arena.map_file(file)
    assert bytes(part.tolist()) == content[:100]
    assert arena.whole.numpy().tobytes() == content
    part[0] = 99
    assert file.read_bytes() == content
    shorter = tmp_path / "shorter"
    shorter.write_bytes(content[1:])
    with pytest.raises(ValueError, match=f"has not {num_bytes} bytes"):
        arena.map_file(shorter)
