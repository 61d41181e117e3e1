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
