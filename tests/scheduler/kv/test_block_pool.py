import tracemalloc

import pytest

from taco_scheduler.kv.block_pool import BlockPool


def test_allocates_all_or_nothing() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3) == [0, 1, 2]
    assert pool.allocate(2) is None
    assert pool.num_free == 1
    assert pool.allocate(0) == []
    assert pool.allocate(1) == [3]
    assert pool.num_free == 0


def test_block_is_free_when_its_last_owner_goes() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(2)
    assert blocks is not None
    pool.retain(blocks[:1])
    pool.release(blocks)
    assert pool.num_free == 1
    assert pool.allocate(1) == blocks[1:]
    pool.release(blocks)
    assert pool.num_free == 2


def test_double_free_raises() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.release(blocks)
    with pytest.raises(RuntimeError, match="freed twice"):
        pool.release(blocks)
    assert pool.num_free == 2


def test_free_block_cannot_be_shared() -> None:
    with pytest.raises(RuntimeError, match="is free"):
        BlockPool(1).retain([0])


def test_pool_needs_a_block() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BlockPool(0)


def test_blocks_that_were_never_used_cost_no_memory() -> None:
    tracemalloc.start()
    try:
        pool = BlockPool(2**26)
        assert pool.allocate(3) == [0, 1, 2]
        assert pool.num_free == 2**26 - 3
        assert pool.num_owners(2**25) == 0
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10_000


def test_blocks_that_were_used_last_come_before_those_that_never_were() -> None:
    pool = BlockPool(6)
    first = pool.allocate(3)
    assert first is not None
    pool.release([1, 0])
    assert pool.allocate(3) == [0, 1, 3]
    assert pool.allocate(3) is None
    assert pool.allocate(2) == [4, 5]
