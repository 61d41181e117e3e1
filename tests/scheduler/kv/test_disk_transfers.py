"""Saving a growing prefix to disk: the work of a chunk does not depend on the prompt's length."""

import sys
from array import array
from types import FrameType
from typing import Any

import pytest

from taco_proto.kv_tiers import StoreCommand, StoreReport
from taco_scheduler.kv import tree_cursor
from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.kv.block_table import BlockTable
from taco_scheduler.kv.common_blocks import num_common_blocks
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.token_ids import TOKEN_BYTES

BLOCK_SIZE = 4
CHUNK_BLOCKS = 32
CHUNK = CHUNK_BLOCKS * BLOCK_SIZE
NUM_CHUNKS = 200
TOKENS = array("i", range(NUM_CHUNKS * CHUNK + 1)).tobytes()
NAMESPACE = CacheNamespace()


class Work:
    """Lines of Python that run in the KV package, and bytes that it copies and compares."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines = self.copied = self.compared = 0
        packed, compare = BlockManager._packed, num_common_blocks

        def counted_packed(*arguments: Any) -> bytes:
            result = packed(*arguments)
            self.copied += len(result)
            return result

        def counted_compare(
            key: bytes, position: int, run: memoryview, *rest: int, **known: int
        ) -> int:
            self.compared += len(run)
            return compare(key, position, run, *rest, **known)

        monkeypatch.setattr(BlockManager, "_packed", counted_packed)
        monkeypatch.setattr(tree_cursor, "num_common_blocks", counted_compare)

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if "taco_scheduler/kv/" not in frame.f_code.co_filename:
            return None
        self.lines += event == "line"
        return self.trace

    def clear(self) -> None:
        self.lines = self.copied = self.compared = 0

    def counts(self) -> tuple[int, int, int]:
        return self.lines, self.copied, self.compared


def make_manager() -> BlockManager:
    num_blocks = 2 * NUM_CHUNKS * CHUNK_BLOCKS
    manager = BlockManager(
        num_blocks, BLOCK_SIZE, num_host_blocks=num_blocks, num_disk_blocks=num_blocks
    )
    assert manager.disk.next_command() == StoreCommand()
    manager.disk.take(StoreReport(is_complete=True))
    return manager


def run_store(manager: BlockManager) -> int:
    """Does what the disk tier is told; returns how many blocks it wrote."""
    num_written = 0
    while (command := manager.disk.next_command()) is not None:
        num_written += len(command.writes)
        written = tuple(block.key for _, block in command.writes)
        manager.disk.take(StoreReport(written=written))
    return num_written


def compute(manager: BlockManager, table: BlockTable, number: int) -> int:
    """One step that computes chunk `number`; returns how many blocks went to disk."""
    copies = manager.take_copies(number)
    assert number < 3 or copies is not None
    manager.publish(table, TOKENS, (number + 1) * CHUNK, number)
    manager.confirm(number)
    return run_store(manager)


def test_a_later_chunk_costs_no_more_than_an_early_one(monkeypatch: pytest.MonkeyPatch) -> None:
    work, manager = Work(monkeypatch), make_manager()
    table = manager.allocate(TOKENS, len(TOKENS) // TOKEN_BYTES, NAMESPACE)
    assert table is not None
    costs: list[tuple[int, int, int]] = []
    num_written = 0
    for number in range(NUM_CHUNKS):
        work.clear()
        sys.settrace(work.trace)
        try:
            num_written += compute(manager, table, number)
        finally:
            sys.settrace(None)
        costs.append(work.counts())
    assert num_written >= (NUM_CHUNKS - 4) * CHUNK_BLOCKS, "the disk keeps up"
    early, late = costs[10], costs[-1]
    assert late[0] <= 1.05 * early[0], "lines"
    assert late[1] <= early[1] == CHUNK * TOKEN_BYTES, "copied once, to be cached"
    assert late[2] <= 1.05 * early[2] + 8 * CHUNK * TOKEN_BYTES, "compared"


def test_a_prefix_that_was_saved_in_chunks_is_found_again() -> None:
    manager = make_manager()
    table = manager.allocate(TOKENS, len(TOKENS) // TOKEN_BYTES, NAMESPACE)
    assert table is not None
    num_written = sum(compute(manager, table, number) for number in range(NUM_CHUNKS))
    manager.release(table, TOKENS, NUM_CHUNKS * CHUNK)
    for step in range(NUM_CHUNKS, NUM_CHUNKS + 40):
        manager.take_copies(step)
        manager.confirm(step)
        num_written += run_store(manager)
    assert num_written == NUM_CHUNKS * CHUNK_BLOCKS
    assert not manager.disk.has_unsaved


def test_a_failed_step_takes_the_cursor_back() -> None:
    manager = make_manager()
    table = manager.allocate(TOKENS, len(TOKENS) // TOKEN_BYTES, NAMESPACE)
    assert table is not None
    for number in range(4):
        compute(manager, table, number)
    manager.take_copies(4)
    manager.publish(table, TOKENS, 5 * CHUNK, 4)
    manager.withdraw()
    manager.release(table, TOKENS, 4 * CHUNK)
    again = manager.allocate(TOKENS, len(TOKENS) // TOKEN_BYTES, NAMESPACE)
    assert again is not None
    assert again.num_cached_tokens == 4 * CHUNK
    num_written = 0
    for number in range(4, 12):
        num_written += compute(manager, again, number)
    assert num_written >= 4 * CHUNK_BLOCKS
