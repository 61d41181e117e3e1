from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from taco_scheduler.kv.block_ids import block_ids
from taco_scheduler.kv.radix_tree import RadixTree

BLOCK_BYTES = 2
NAMESPACE = "namespace"
keys = st.lists(st.sampled_from([b"aa", b"ab", b"ba"]), max_size=8).map(b"".join)


def cache(tree: RadixTree, key: bytes, blocks: list[int], step_id: int | None = None) -> list[int]:
    """Inserts a whole prefix and leaves it unpinned; returns the blocks that the tree took."""
    node = tree.pin(tree.match(NAMESPACE, b""))
    node, taken = tree.insert(node, key, block_ids(blocks), step_id)
    tree.unpin(node)
    return list(taken)


@given(st.lists(keys, max_size=8), keys)
@settings(max_examples=200, deadline=None)
def test_match_is_the_longest_common_prefix_in_blocks(cached: list[bytes], query: bytes) -> None:
    tree = RadixTree(BLOCK_BYTES)
    numbers = count()
    expected: dict[bytes, int] = {}
    for key in cached:
        blocks = [next(numbers) for _ in range(len(key) // BLOCK_BYTES)]
        cache(tree, key, blocks)
        for i, block in enumerate(blocks, 1):
            expected.setdefault(key[: i * BLOCK_BYTES], block)
    ends = range(BLOCK_BYTES, len(query) + 1, BLOCK_BYTES)
    common = [expected[query[:end]] for end in ends if query[:end] in expected]
    match = tree.match(NAMESPACE, query)
    assert list(match.blocks) == common
    assert match.num_evictable == len(common)
    assert tree.num_evictable == len(expected)


def test_the_first_cached_blocks_stay_in_the_tree() -> None:
    tree = RadixTree(BLOCK_BYTES)
    assert cache(tree, b"aabb", [0, 1]) == [0, 1]
    assert cache(tree, b"aabbcc", [2, 3, 4]) == [4]
    assert list(tree.match(NAMESPACE, b"aabbcc").blocks) == [0, 1, 4]


def test_evicts_tails_of_the_least_recently_used_leaf() -> None:
    tree = RadixTree(BLOCK_BYTES)
    cache(tree, b"aabbcc", [0, 1, 2])
    cache(tree, b"aaddee", [3, 4, 5])
    cache(tree, b"ff", [6])
    tree.unpin(tree.pin(tree.match(NAMESPACE, b"aabbcc")))
    assert list(tree.evict(1)) == [5]
    assert list(tree.match(NAMESPACE, b"aaddee").blocks) == [0, 4]
    assert list(tree.evict(2)) == [4, 6]
    assert list(tree.evict(2)) == [1, 2]
    assert list(tree.evict(9)) == [0]
    assert tree.num_evictable == 0


def test_pinned_prefix_is_not_evicted() -> None:
    tree = RadixTree(BLOCK_BYTES)
    cache(tree, b"aabbcc", [0, 1, 2])
    node = tree.pin(tree.match(NAMESPACE, b"aabb"))
    assert tree.num_evictable == 1
    assert list(tree.evict(3)) == [2]
    tree.unpin(node)
    assert sorted(tree.evict(3)) == [0, 1]


def test_chunks_of_a_prefill_become_one_node() -> None:
    tree = RadixTree(BLOCK_BYTES)
    node = tree.pin(tree.match(NAMESPACE, b""))
    for step, key in enumerate([b"aa", b"bbcc", b"dd"]):
        blocks = list(range(10 * step, 10 * step + len(key) // BLOCK_BYTES))
        node, _ = tree.insert(node, key, block_ids(blocks), step)
    tree.confirm(2)
    tree.unpin(node)
    match = tree.match(NAMESPACE, b"aabbccdd")
    assert list(match.blocks) == [0, 10, 11, 20]
    assert match.num_node_blocks == 4


def test_descendants_of_an_unconfirmed_prefix_are_withdrawn_with_it() -> None:
    tree = RadixTree(BLOCK_BYTES)
    cache(tree, b"aa", [0])
    cache(tree, b"aabbcc", [1, 2, 3], step_id=7)
    cache(tree, b"aabbccdd", [4, 5, 6, 7])
    assert {block for node in tree.withdraw() for block in node.blocks} == {2, 3, 7}
    assert list(tree.match(NAMESPACE, b"aabbccdd").blocks) == [0]
    assert tree.num_evictable == 1


def test_every_part_of_a_split_run_is_withdrawn() -> None:
    tree = RadixTree(BLOCK_BYTES)
    cache(tree, b"aabbccdd", [0, 1, 2, 3], step_id=1)
    cache(tree, b"aabbccee", [4, 5, 6, 7])
    cache(tree, b"aaff", [8, 9])
    tree.withdraw()
    assert tree.num_evictable == 0
    assert tree.match(NAMESPACE, b"aaff").node is None


def test_evicted_run_is_not_withdrawn_again() -> None:
    tree = RadixTree(BLOCK_BYTES)
    cache(tree, b"aabb", [0, 1], step_id=1)
    assert list(tree.evict(2)) == [0, 1]
    cache(tree, b"aabb", [2, 3])
    assert tree.withdraw() == set()
    assert list(tree.match(NAMESPACE, b"aabb").blocks) == [2, 3]


def test_confirmed_steps_stay() -> None:
    tree = RadixTree(BLOCK_BYTES)
    cache(tree, b"aa", [0], step_id=1)
    cache(tree, b"aabb", [1, 2], step_id=2)
    tree.confirm(1)
    tree.withdraw()
    assert list(tree.match(NAMESPACE, b"aabb").blocks) == [0]
