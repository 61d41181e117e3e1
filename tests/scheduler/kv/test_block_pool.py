import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taco_scheduler.kv.block_ids import BlockIds, block_ids
from taco_scheduler.kv.block_pool import MIN_VECTOR, BlockPool


def test_allocates_all_or_nothing() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3) == block_ids([0, 1, 2])
    assert pool.allocate(2) is None
    assert pool.num_free == 1
    assert pool.allocate(0) == block_ids()
    assert pool.allocate(1) == block_ids([3])
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
        assert pool.allocate(3) == block_ids([0, 1, 2])
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
    assert pool.allocate(3) == block_ids([0, 1, 3])
    assert pool.allocate(3) is None
    assert pool.allocate(2) == block_ids([4, 5])


@given(st.lists(st.tuples(st.sampled_from(["allocate", "retain", "release"]), st.integers(0, 200))))
def test_many_blocks_at_once_are_counted_like_one_after_the_other(
    moves: list[tuple[str, int]],
) -> None:
    pool, alone = BlockPool(200), BlockPool(200)
    held: list[BlockIds] = []
    for name, number in moves:
        if name == "allocate":
            blocks = pool.allocate(number)
            assert blocks == alone.allocate(number)
            if blocks is not None:
                held.append(blocks)
        elif held:
            blocks = held[number % len(held)]
            if name == "retain":
                pool.retain(blocks)
                alone.retain(list(blocks))
                held.append(blocks)
            else:
                held.pop(number % len(held))
                pool.release(blocks)
                alone.release(list(blocks))
        assert pool.num_free == alone.num_free
        assert [pool.num_owners(b) for b in range(200)] == [alone.num_owners(b) for b in range(200)]


def test_errors_name_one_of_many_blocks() -> None:
    pool = BlockPool(MIN_VECTOR)
    blocks = pool.allocate(MIN_VECTOR)
    assert blocks is not None
    pool.release([5])
    with pytest.raises(RuntimeError, match="block 5 is free and cannot be shared"):
        pool.retain(blocks)
    with pytest.raises(RuntimeError, match="block 5 is freed twice"):
        pool.release(blocks)
    assert pool.num_free == 1
