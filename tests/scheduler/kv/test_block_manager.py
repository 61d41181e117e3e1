import struct
from array import array

import pytest

from taco_scheduler.kv.block_ids import block_ids
from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.kv.block_table import BlockTable
from taco_scheduler.kv.namespace import CacheNamespace

BLOCK_SIZE = 4
NAMESPACE = CacheNamespace()


def pack(*tokens: int) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)


def admit(
    manager: BlockManager, tokens: bytes, namespace: CacheNamespace = NAMESPACE
) -> BlockTable:
    table = manager.allocate(tokens, len(tokens) // 4, namespace)
    assert table is not None
    return table


def run_once(manager: BlockManager, tokens: bytes, namespace: CacheNamespace = NAMESPACE) -> None:
    manager.release(admit(manager, tokens, namespace), tokens, len(tokens) // 4)


def test_finished_sequence_leaves_its_full_blocks() -> None:
    manager = BlockManager(8, BLOCK_SIZE)
    run_once(manager, pack(*range(11)))
    table = admit(manager, pack(*range(11)))
    assert table.num_cached_tokens == 8
    assert len(table.blocks) == 3


def test_one_token_is_left_to_compute() -> None:
    manager = BlockManager(8, BLOCK_SIZE)
    run_once(manager, pack(*range(8)))
    assert admit(manager, pack(*range(8))).num_cached_tokens == 4
    assert admit(manager, pack(*range(9))).num_cached_tokens == 8


def test_any_view_of_int32_is_the_same_tokens() -> None:
    manager = BlockManager(8, BLOCK_SIZE)
    tokens = array("i", range(9))
    table = manager.allocate(memoryview(tokens), 9, NAMESPACE)
    assert table is not None
    manager.publish(table, memoryview(tokens), 4, 0)
    manager.release(table, memoryview(tokens), 8)
    assert admit(manager, pack(*range(9))).num_cached_tokens == 8


@pytest.mark.parametrize("other", [CacheNamespace("adapter"), CacheNamespace("", "salt")])
def test_namespaces_share_nothing(other: CacheNamespace) -> None:
    manager = BlockManager(8, BLOCK_SIZE)
    run_once(manager, pack(*range(9)))
    assert admit(manager, pack(*range(9)), other).num_cached_tokens == 0


def test_published_blocks_are_shared_while_they_are_filled() -> None:
    manager = BlockManager(8, BLOCK_SIZE)
    tokens = pack(*range(9))
    first = admit(manager, tokens)
    manager.publish(first, tokens, 8, 0)
    second = admit(manager, tokens)
    assert second.blocks[:2] == first.blocks[:2]
    assert manager.num_free_blocks == 4
    assert manager.usage == 0.5


def test_without_reading_the_cache_it_is_filled() -> None:
    manager = BlockManager(8, BLOCK_SIZE)
    tokens = pack(*range(9))
    table = manager.allocate(tokens, 9, NAMESPACE, read_cache=False)
    assert table is not None
    manager.publish(table, tokens, 9, 0)
    duplicate = manager.allocate(tokens, 9, NAMESPACE, read_cache=False)
    assert duplicate is not None
    manager.publish(duplicate, tokens, 9, 0)
    assert not set(duplicate.blocks) & set(table.blocks)
    assert admit(manager, tokens).blocks[:2] == table.blocks[:2]


def test_without_prefix_caching_nothing_is_kept() -> None:
    manager = BlockManager(8, BLOCK_SIZE, enable_prefix_caching=False)
    tokens = pack(*range(9))
    table = admit(manager, tokens)
    manager.publish(table, tokens, 9, 0)
    assert admit(manager, tokens).num_cached_tokens == 0
    manager.release(table, tokens, 9)
    assert manager.num_free_blocks == 5


def test_extend_evicts_and_fails_whole() -> None:
    manager = BlockManager(4, BLOCK_SIZE)
    run_once(manager, pack(*range(8)))
    table = admit(manager, pack(20))
    assert manager.extend(table, 4) == block_ids()
    assert manager.extend(table, 17) is None
    assert len(table.blocks) == 1
    extended = manager.extend(table, 16)
    assert extended is not None
    assert table.blocks[1:] == extended
    assert manager.num_free_blocks == 0
    manager.release(table, pack(20), 1)
    assert admit(manager, pack(*range(8), 8)).num_cached_tokens == 0, "they were evicted"


def test_rejected_tokens_are_not_cached() -> None:
    manager = BlockManager(8, BLOCK_SIZE)
    tokens = pack(*range(12))
    table = admit(manager, tokens)
    manager.release(table, tokens, 7)
    assert manager.num_free_blocks == 8
    assert admit(manager, tokens).num_cached_tokens == 4


def test_failed_step_takes_back_what_it_published() -> None:
    manager = BlockManager(8, BLOCK_SIZE)
    tokens = pack(*range(13))
    first = admit(manager, tokens)
    manager.publish(first, tokens, 4, 1)
    manager.confirm(1)
    manager.publish(first, tokens, 12, 2)
    second = admit(manager, tokens)
    assert second.num_cached_tokens == 12
    manager.withdraw()
    # The second sequence believes in twelve cached tokens, eight of which were never computed.
    manager.release(second, tokens, 12)
    manager.release(first, tokens, 4)
    assert admit(manager, tokens).num_cached_tokens == 4
    assert manager.num_free_blocks == 4


def test_table_ends_once() -> None:
    manager = BlockManager(4, BLOCK_SIZE)
    tokens = pack(*range(5))
    table = admit(manager, tokens)
    manager.release(table, tokens, 5)
    for use in (
        lambda: manager.release(table, tokens, 5),
        lambda: manager.extend(table, 9),
        lambda: manager.publish(table, tokens, 5, 0),
    ):
        with pytest.raises(RuntimeError, match="has been released"):
            use()
    assert manager.num_free_blocks == 4


def test_more_tokens_than_there_are() -> None:
    manager = BlockManager(4, BLOCK_SIZE)
    tokens = pack(*range(4))
    table = admit(manager, tokens)
    with pytest.raises(ValueError, match="more than the sequence has"):
        manager.publish(table, tokens, 8, 0)
    manager.extend(table, 8)
    with pytest.raises(ValueError, match="more than the sequence has"):
        manager.release(table, tokens, 8)
    manager.release(table, tokens, 4)
    assert manager.num_free_blocks == 4


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="num_blocks"):
        BlockManager(0, 16)
    with pytest.raises(ValueError, match="block_size"):
        BlockManager(1, 0)
