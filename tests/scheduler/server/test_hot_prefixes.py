"""What gateways are told of the prefix caches."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taco_common.prefix_hashes import block_hashes, is_landmark, num_known_blocks, prompt_hashes
from taco_proto.registry import KEY_BYTES, MAX_PREFIXES
from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.kv.block_table import BlockTable
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.server import hot_prefixes
from taco_scheduler.server.hot_prefixes import HotPrefixes

KEY = b"k" * KEY_BYTES
BLOCK_SIZE = 2
BASE = CacheNamespace()


def make_cache(num_blocks: int = 4096, num_host_blocks: int = 0) -> BlockManager:
    return BlockManager(num_blocks, BLOCK_SIZE, num_host_blocks=num_host_blocks)


def run(cache: BlockManager, tokens: list[int], namespace: CacheNamespace = BASE) -> None:
    """A sequence of these tokens comes, is computed and goes."""
    finish(cache, start(cache, tokens, namespace), tokens)


def start(cache: BlockManager, tokens: list[int], namespace: CacheNamespace = BASE) -> BlockTable:
    table = cache.allocate(array("i", tokens).tobytes(), len(tokens), namespace)
    assert table is not None
    cache.publish(table, array("i", tokens).tobytes(), len(tokens), 1)
    return table


def finish(cache: BlockManager, table: BlockTable, tokens: list[int]) -> None:
    cache.confirm(1)
    cache.release(table, array("i", tokens).tobytes(), len(tokens))


def collect(hot: HotPrefixes, *caches: BlockManager) -> frozenset[bytes]:
    """A whole round."""
    for _ in hot.collect(caches):
        pass
    return hot.found


def found(prefixes: frozenset[bytes], tokens: list[int], salt: str = "") -> int:
    """Blocks of a prompt that a gateway takes to be cached."""
    packed = array("i", [*tokens, -1]).tobytes()
    return num_known_blocks(prompt_hashes(KEY, "", salt, packed, BLOCK_SIZE * 4), prefixes)


def test_a_prompt_is_found_and_so_is_most_of_its_beginning() -> None:
    cache = make_cache()
    prompt = list(range(400))
    run(cache, prompt)
    prefixes = collect(HotPrefixes(KEY), cache)
    assert found(prefixes, prompt) == 200
    assert found(prefixes, [*prompt, 7, 7]) == 200
    for num_common in (1, 5, 64, 199):
        least = max(depth for depth in range(1, num_common + 1) if is_landmark(depth))
        assert found(prefixes, prompt[: 2 * num_common] + [7] * 10) == least


def test_where_prompts_part_the_match_is_exact() -> None:
    cache = make_cache()
    common = list(range(100))
    for tail in range(3):
        run(cache, common + [1000 + tail] * 8)
    prefixes = collect(HotPrefixes(KEY), cache)
    assert found(prefixes, common + [7] * 10) == 50


def test_what_runs_is_there_with_what_has_run_and_what_is_pinned() -> None:
    cache = make_cache()
    run(cache, [1] * 8)
    run(cache, [2] * 8)
    cache.pin_prefix(array("i", [2] * 8).tobytes(), BASE, until=1e9)
    start(cache, [3] * 8)
    prefixes = collect(HotPrefixes(KEY), cache)
    assert [found(prefixes, [token] * 8) for token in (1, 2, 3, 4)] == [4, 4, 4, 0]


def test_what_is_evicted_is_no_longer_told() -> None:
    cache = make_cache(num_blocks=8)
    hot = HotPrefixes(KEY)
    run(cache, [1] * 12)
    assert found(collect(hot, cache), [1] * 12) == 6
    run(cache, [2] * 12)  # takes four blocks off the tail of the first one
    prefixes = collect(hot, cache)
    assert (
        found(prefixes, [1] * 12)
        == cache.num_cached_tokens(array("i", [1] * 12).tobytes(), BASE) // BLOCK_SIZE
    )
    assert found(prefixes, [2] * 12) == 6


def test_what_only_the_host_holds_is_told() -> None:
    cache = make_cache(num_blocks=8, num_host_blocks=64)
    run(cache, [1] * 12)
    run(cache, [2] * 14)
    cache.take_copies(2)
    cache.confirm(2)
    prefixes = collect(HotPrefixes(KEY), cache)
    assert found(prefixes, [1] * 12) == 6


def test_namespaces_stay_apart() -> None:
    cache = make_cache()
    run(cache, [1] * 8, CacheNamespace(cache_salt="a"))
    prefixes = collect(HotPrefixes(KEY), cache)
    assert found(prefixes, [1] * 8, "a") == 4
    assert found(prefixes, [1] * 8, "b") == found(prefixes, [1] * 8) == 0


def test_all_replicas_are_told_together() -> None:
    first, second = make_cache(), make_cache()
    run(first, [1] * 8)
    run(second, [2] * 8)
    prefixes = collect(HotPrefixes(KEY), first, second)
    assert found(prefixes, [1] * 8) == found(prefixes, [2] * 8) == 4
    assert collect(HotPrefixes(KEY)) == frozenset()


def test_the_number_is_bounded_and_the_hottest_stay() -> None:
    cache = make_cache(num_blocks=20_000)
    for number in range(3000):
        run(cache, [number, number, 5, 5, 6, 6])
    hot = HotPrefixes(KEY)
    prefixes = collect(hot, cache)
    assert len(prefixes) <= MAX_PREFIXES
    assert found(prefixes, [2999, 2999, 5, 5, 6, 6]) == 3
    assert found(prefixes, [0, 0, 5, 5, 6, 6]) == 0


def test_a_round_hashes_its_maximum_and_the_next_one_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hot_prefixes, "MAX_HASHED_BLOCKS", 10)
    cache = make_cache()
    for number in range(8):
        run(cache, [number] * 8)  # 4 blocks each
    hot = HotPrefixes(KEY)
    counts = []
    for _ in range(4):
        prefixes = collect(hot, cache)
        counts.append(sum(found(prefixes, [number] * 8) == 4 for number in range(8)))
    assert counts == [3, 6, 8, 8]


def test_a_long_prompt_is_hashed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {0: 0}  # of blocks that were hashed after each pause

    def counting(parent: bytes, token_ids: memoryview, block_bytes: int) -> list[bytes]:
        hashes = block_hashes(parent, token_ids, block_bytes)
        numbers[max(numbers)] += len(hashes)
        return hashes

    monkeypatch.setattr(hot_prefixes, "block_hashes", counting)
    cache, hot = make_cache(), HotPrefixes(KEY)
    prompt = list(range(2000))
    run(cache, prompt)
    run(cache, prompt[:100] + [7] * 500)
    for pause, _ in enumerate(hot.collect([cache]), 1):
        numbers[pause] = 0
    assert sum(numbers.values()) == 1250
    assert max(numbers.values()) <= hot_prefixes.SLICE
    assert found(hot.found, prompt) == 1000
    assert found(hot.found, prompt[:100] + [7] * 500) == 300


def test_a_long_node_may_change_while_it_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_prefixes, "SLICE", 4)
    cache, hot = make_cache(num_blocks=256), HotPrefixes(KEY)
    prompt = list(range(200))
    run(cache, prompt)
    for number, _ in enumerate(hot.collect([cache])):
        if number % 3 == 0:  # splits the node that is being hashed
            run(cache, prompt[: 2 * (number % 100)] + [900 + number] * 4)
    prefixes = collect(hot, cache)
    packed = array("i", [*prompt, -1]).tobytes()
    num_cached = cache.num_cached_tokens(packed, BASE) // BLOCK_SIZE
    assert num_cached / 2 < found(prefixes, prompt) <= num_cached


def test_a_tree_may_change_within_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_prefixes, "SLICE", 1)
    cache, hot = make_cache(num_blocks=32), HotPrefixes(KEY)
    prompts = [[number] * 8 for number in range(8)]
    for prompt in prompts:
        run(cache, prompt)
    for _ in hot.collect([cache]):
        run(cache, [9] * 8)  # takes blocks off the others, one after the other
        run(cache, [10] * 8)
    for prompt in prompts:
        assert found(hot.found, prompt) <= 4
    prefixes = collect(hot, cache)
    for prompt in prompts:
        packed = array("i", [*prompt, -1]).tobytes()
        assert found(prefixes, prompt) <= cache.num_cached_tokens(packed, BASE) // BLOCK_SIZE
    assert found(prefixes, [9] * 8) == found(prefixes, [10] * 8) == 4


PROMPTS = st.lists(st.lists(st.integers(0, 1), min_size=3, max_size=20), min_size=1, max_size=12)


@given(PROMPTS, st.lists(st.integers(0, 1), min_size=3, max_size=20), st.integers(12, 40))
def test_only_cached_prefixes_are_published(
    prompts: list[list[int]], asked: list[int], num_blocks: int
) -> None:
    """Through splits, joins and evictions of the tree, with what was hashed before at hand."""
    cache, hot = make_cache(num_blocks=num_blocks), HotPrefixes(KEY)
    packed = array("i", [*asked, -1]).tobytes()
    for prompt in prompts:
        run(cache, prompt)
        num_told = found(collect(hot, cache), asked)
        num_cached = cache.num_cached_tokens(packed, BASE) // BLOCK_SIZE
        assert num_told <= num_cached
        assert num_told >= min(num_cached, 1)
        assert 3 * num_told >= 2 * num_cached
