"""Block manager and prefix tree alone: microseconds per operation.

Every figure is the median of many runs in one process, without a device. Times are CPU time of the
thread, so other load on the machine does not count.
"""

import argparse
import statistics
import struct
import time
from collections.abc import Callable

from bench.record import save
from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.kv.namespace import CacheNamespace

BLOCK_SIZE = 16
NAMESPACE = CacheNamespace()


def pack(tokens: range) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)


def median_us(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.thread_time_ns()
        run()
        times.append(time.thread_time_ns() - start)
    return statistics.median(times) / 1000


def warm_manager(tokens: bytes, chunk: int) -> BlockManager:
    """Makes a pool of 65,536 blocks whose tree holds one sequence, prefilled in chunks."""
    manager = BlockManager(65_536, BLOCK_SIZE)
    num_tokens = len(tokens) // 4
    table = manager.allocate(tokens, num_tokens, NAMESPACE)
    assert table is not None
    for step, end in enumerate(range(chunk, num_tokens + chunk, chunk)):
        manager.publish(table, tokens, min(end, num_tokens), step)
        manager.confirm(step)
    manager.release(table, tokens, num_tokens)
    return manager


def full_hit(num_tokens: int) -> float:
    """Matches, allocates and releases a prompt of which all but the last block is cached."""
    tokens = pack(range(num_tokens))
    manager = warm_manager(tokens, chunk=512)

    def run() -> None:
        table = manager.allocate(tokens, num_tokens, NAMESPACE)
        assert table is not None
        assert table.num_cached_tokens == num_tokens - BLOCK_SIZE
        manager.release(table, tokens, num_tokens)

    return median_us(run, 2000)


def miss(num_tokens: int) -> float:
    """Allocates an uncached prompt and releases all its blocks."""
    tokens = pack(range(num_tokens))
    manager = BlockManager(65_536, BLOCK_SIZE)

    def run() -> None:
        table = manager.allocate(tokens, num_tokens, NAMESPACE)
        assert table is not None
        manager.release(table, tokens, 0)

    return median_us(run, 2000)


def extend_by_free_block() -> float:
    """Gives a free block to each of 256 decoding sequences; per sequence."""
    return _extend_step(BlockManager(65_536, BLOCK_SIZE))


def extend_by_eviction() -> float:
    """The same where every block must be evicted from a cached sequence of 65,536 × 16 tokens."""
    num_tokens = 65_536 * BLOCK_SIZE
    return _extend_step(warm_manager(pack(range(num_tokens)), num_tokens))


def _extend_step(manager: BlockManager) -> float:
    first = [pack(range(-1 - i * BLOCK_SIZE, -1 - (i + 1) * BLOCK_SIZE, -1)) for i in range(256)]
    tables = [manager.allocate(tokens, BLOCK_SIZE, NAMESPACE) for tokens in first]
    live = [table for table in tables if table is not None]
    assert len(live) == 256
    covered = BLOCK_SIZE

    def run() -> None:
        nonlocal covered
        covered += BLOCK_SIZE
        for table in live:
            blocks = manager.extend(table, covered)
            assert blocks is not None

    return median_us(run, 200) / len(live)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    figures = {
        "full prefix hit, 4,096 tokens: allocate + release": full_hit(4096),
        "full prefix hit, 131,072 tokens: allocate + release": full_hit(131_072),
        "no hit, 4,096 tokens: allocate + release": miss(4096),
        "extend by a free block": extend_by_free_block(),
        "extend by an evicted block": extend_by_eviction(),
    }
    for name, microseconds in figures.items():
        print(f"{name:<55} {microseconds:10.2f} µs")
    if arguments.save:
        print(save("kv_microbench", {name: round(us, 2) for name, us in figures.items()}))


if __name__ == "__main__":
    main()
