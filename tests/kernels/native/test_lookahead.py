"""The lookahead cache against a plain implementation in support/lookahead_oracle.py."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.cpu_kernels import NATIVE, kernels_of
from support.lookahead_oracle import LookaheadOracle
from taco_kernels import build
from taco_kernels.native import draft_selector, draft_trees, lookahead
from taco_kernels.native.draft_trees import DraftTrees
from taco_kernels.native.lookahead import (
    MAX_TREE,
    NUM_CLASSES,
    CacheOptions,
    IntArray,
    LookaheadCache,
    Mode,
    bytes_per_token,
)

NUM_SLOTS = 3
EOS = 6
PRIORS = np.random.default_rng(0).uniform(0.2, 1.0, NUM_CLASSES).astype(np.float32)
DEFAULTS = CacheOptions(
    num_slots=NUM_SLOTS,
    max_len=1000,
    vocab_size=100,
    eos_ids=(EOS,),
    num_tokens=20_000,
    start_weight=10.0,
    secret=bytes(range(16)),
)


def make_cache(options: CacheOptions = DEFAULTS, num_threads: int = 1) -> LookaheadCache:
    return LookaheadCache(kernels_of(NATIVE[0], num_threads), options, PRIORS)


def ints(*values: int) -> IntArray:
    return np.array(values, dtype=np.int32)


def join(
    cache: LookaheadCache,
    slot: int,
    prompt: list[int],
    output: tuple[int, ...] | list[int] = (),
    salt: str = "",
    skips: bool = False,
) -> None:
    tokens = [*prompt, *output]
    cache.join(
        ints(slot),
        ints(len(prompt)),
        ints(len(tokens)),
        ints(*tokens),
        (salt,) if salt else (),
        skips_prompts=skips,
    )


def append(cache: LookaheadCache, slot: int, tokens: list[int]) -> None:
    cache.append(ints(slot), ints(len(tokens)), ints(*tokens))


def rows_of(trees: DraftTrees) -> list[list[tuple[int, int, int]]]:
    """(token, parent, class) of the nodes of each row."""
    columns = (trees.token_ids, trees.parents, trees.classes)
    nodes = list(zip(*(column.tolist() for column in columns), strict=True))
    ends = np.cumsum(trees.num_nodes).tolist()
    return [
        nodes[end - size : end] for size, end in zip(trees.num_nodes.tolist(), ends, strict=True)
    ]


def drafts(cache: LookaheadCache, slot: int = 0, max_nodes: int = MAX_TREE) -> list[int]:
    return cache.draft(ints(slot), ints(max_nodes)).token_ids.tolist()


def paths(cache: LookaheadCache, slot: int = 0, max_nodes: int = MAX_TREE) -> set[tuple[int, ...]]:
    """The paths from the root to each leaf."""
    [nodes] = rows_of(cache.draft(ints(slot), ints(max_nodes)))
    to_node: list[tuple[int, ...]] = []
    for token, parent, _ in nodes:
        to_node.append((*(to_node[parent] if parent >= 0 else ()), token))
    return {path for index, path in enumerate(to_node) if index not in {node[1] for node in nodes}}


# ---------------------------------------------------------------------- the rules

tokens = st.integers(1, EOS)
texts = st.lists(tokens, max_size=25)


@st.composite
def all_options(draw: st.DrawFn) -> CacheOptions:
    raw_max = draw(st.integers(1, 4))
    max_match = draw(st.integers(1, 7))
    return replace(
        DEFAULTS,
        max_len=draw(st.sampled_from([20, 1000])),
        vocab_size=draw(st.sampled_from([EOS - 1, 100])),
        has_table=draw(st.booleans()),
        mode=draw(st.sampled_from(Mode)),
        copy_length=draw(st.integers(1, 9)),
        raw_min=draw(st.integers(1, raw_max)),
        raw_max=raw_max,
        raw_paths=draw(st.integers(1, 3)),
        min_match=draw(st.integers(1, max_match)),
        max_match=max_match,
        cell_size=draw(st.integers(1, 5)),
        cell_top=draw(st.integers(1, 4)),
        max_paths=draw(st.integers(1, 4)),
        threshold=draw(st.sampled_from([0.0, 1.5, 2.0])),
        decay=draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])),
        start_weight=draw(st.sampled_from([0.0, 1.0, 10.0])),
        target_parallelism=draw(st.sampled_from([0, 5, 12])),
    )


joins = st.tuples(st.just("join"), texts, texts, st.sampled_from(["", "a"]), st.booleans())
appends = st.tuples(st.just("append"), st.lists(tokens, max_size=6))
events = st.lists(st.tuples(st.integers(0, NUM_SLOTS - 1), joins | appends | appends), max_size=20)


@given(options=all_options(), events=events, max_nodes=st.lists(st.integers(0, 70), min_size=3))
@settings(max_examples=250, deadline=None)
def test_drafts_equal_those_of_the_oracle(
    options: CacheOptions, events: list[tuple[int, tuple]], max_nodes: list[int]
) -> None:
    cache, oracle = make_cache(options), LookaheadOracle(options, PRIORS)
    for slot, (kind, *arguments) in events:
        if kind == "join":
            join(cache, slot, *arguments)
            oracle.join(slot, *arguments)
        elif slot in oracle.sequences:
            append(cache, slot, *arguments)
            oracle.append(slot, *arguments)
        rows = list(zip(sorted(oracle.sequences), max_nodes, strict=False))
        slots, most = ints(*(row[0] for row in rows)), ints(*(row[1] for row in rows))
        trees = cache.draft(slots, most)
        assert rows_of(trees) == oracle.draft(rows)


@given(
    text=st.lists(st.integers(1, 4), min_size=10, max_size=200),
    max_paths=st.integers(1, 5),
    max_nodes=st.integers(1, MAX_TREE),
)
@settings(max_examples=100, deadline=None)
def test_trees_are_well_formed_and_a_smaller_budget_keeps_a_part(
    text: list[int], max_paths: int, max_nodes: int
) -> None:
    cache = make_cache(replace(DEFAULTS, max_paths=max_paths))
    join(cache, 0, text)
    [whole] = rows_of(cache.draft(ints(0), ints(MAX_TREE)))
    [part] = rows_of(cache.draft(ints(0), ints(max_nodes)))

    assert len(part) == min(max_nodes, len(whole))
    depths: list[int] = []
    for index, (_, parent, kind) in enumerate(part):
        assert -1 <= parent < index
        assert 0 <= kind < NUM_CLASSES
        depths.append(1 if parent < 0 else depths[parent] + 1)
        # Depth first: the parent is the node before, or one above it.
        ancestors = [index - 1]
        while ancestors[-1] >= 0:
            ancestors.append(part[ancestors[-1]][1])
        assert parent in ancestors
    assert len({(parent, token) for token, parent, _ in part}) == len(part)
    assert all(depths.count(depth) <= max_paths for depth in depths)
    assert max(depths, default=0) <= DEFAULTS.copy_length
    assert paths(cache, max_nodes=max_nodes) <= {
        path[:size] for path in paths(cache) for size in range(1, len(path) + 1)
    }


def test_rows_do_not_depend_on_their_neighbours_nor_on_threads() -> None:
    rng = np.random.default_rng(0)
    options = replace(DEFAULTS, num_slots=150, max_paths=3)
    alone, together = make_cache(options), make_cache(options, num_threads=2)
    for cache in (alone, together):
        rng = np.random.default_rng(0)
        for slot in range(150):
            join(cache, slot, rng.integers(1, 6, 40).tolist())
    slots = np.arange(150, dtype=np.int32)
    most = rng.integers(0, 20, 150).astype(np.int32)

    rows = rows_of(together.draft(slots, most))

    assert rows == [
        rows_of(alone.draft(slots[row : row + 1], most[row : row + 1]))[0] for row in slots
    ]
    assert len({len(row) for row in rows}) > 3


def test_the_same_secret_gives_the_same_drafts_even_from_a_full_table() -> None:
    options = replace(DEFAULTS, num_tokens=100)
    caches = make_cache(options), make_cache(options)
    for cache in caches:
        rng = np.random.default_rng(0)
        for slot in range(NUM_SLOTS):
            join(cache, slot, rng.integers(1, 20, 900).tolist())
    slots, most = ints(0, 1, 2), ints(20, 20, 20)
    assert rows_of(caches[0].draft(slots, most)) == rows_of(caches[1].draft(slots, most))


# ---------------------------------------------------------------------- memory


def test_the_table_stays_within_its_memory() -> None:
    assert bytes_per_token(2, 7) == 150
    cache = make_cache(replace(DEFAULTS, num_tokens=1000))
    assert cache.table_bytes + cache.max_local_bytes == 150 * 1000
    guard = cache._table.clone()  # the table is this tensor, and nothing grows beside it
    text = np.random.default_rng(0).integers(1, 90, 50_000).astype(np.int32)
    cache.learn(ints(text.size), text, ())
    assert cache._table.numel() == guard.numel() == cache.table_bytes
    entries = cache._table.numpy().view(np.uint64).reshape(-1, 2)
    is_used = entries[:, 0] != 0
    assert is_used.mean() > 0.95  # as full as it gets


def test_a_full_table_keeps_the_latest_tokens() -> None:
    cache = make_cache(replace(DEFAULTS, num_tokens=64, mode=Mode.TURBO, copy_length=1))
    rng = np.random.default_rng(0)
    for _ in range(300):
        text = rng.integers(7, 99, 12).tolist()
        cache.learn(ints(12), ints(*text), ())
        join(cache, 0, text[:10], [text[10]])
        assert drafts(cache) == [text[11]]


def test_a_full_table_evicts_the_least_recently_used() -> None:
    cache = make_cache(replace(DEFAULTS, num_tokens=64, mode=Mode.TURBO))
    old, rng = list(range(10, 16)), np.random.default_rng(0)
    cache.learn(ints(6), ints(*old), ())
    join(cache, 0, old[:2], old[2:3])
    assert drafts(cache) == old[3:]
    cache.learn(ints(5000), rng.integers(30, 99, 5000).astype(np.int32), ())
    assert drafts(cache) == []


def test_indexes_of_sequences_are_freed_when_they_leave() -> None:
    cache = make_cache()
    assert cache.local_bytes == 0
    join(cache, 0, [1] * 500)
    one = cache.local_bytes
    join(cache, 1, [1] * 500)
    assert cache.local_bytes == 2 * one > 0
    join(cache, 1, [1] * 500)  # in the place of the other
    assert cache.local_bytes == 2 * one
    cache.leave(ints(0))
    assert cache.local_bytes == one
    assert drafts(cache, 0) == []
    cache.clear()
    assert cache.local_bytes == 0


@given(lengths=st.lists(st.integers(0, 700), min_size=3, max_size=3))
@settings(max_examples=30, deadline=None)
def test_indexes_of_sequences_stay_within_their_memory(lengths: list[int]) -> None:
    """An index that cannot grow is cleared, and drafts from later tokens."""
    options = replace(DEFAULTS, num_tokens=300, has_table=False)
    cache = make_cache(options)
    for slot, length in enumerate(lengths):
        join(cache, slot, [1 + i % 5 for i in range(length)])
        assert cache.local_bytes <= cache.max_local_bytes == 30 * 300
    append(cache, 0, [2, 3, 4, 2, 3])
    assert drafts(cache)[:1] in ([], [4], [2])  # 2 where nothing but 2 3 4 2 3 had room
    assert cache.local_bytes <= cache.max_local_bytes


# ---------------------------------------------------------------------- who learns from whom


def test_sequences_learn_from_one_another_by_salt() -> None:
    text = [7, 8, 9, 10, 11, 12]
    cache = make_cache()
    join(cache, 0, text, salt="one")
    for salt, expected in (("one", text[3:]), ("two", []), ("", [])):
        join(cache, 1, text[:2], text[2:3], salt=salt)
        assert drafts(cache, 1) == expected


def test_a_resumed_sequence_is_not_learned_again() -> None:
    cache = make_cache()
    join(cache, 0, [7, 8, 9], [10, 11, 12])
    join(cache, 1, [7, 8], [9])
    assert drafts(cache, 1) == []
    join(cache, 0, [7, 8, 9, 10, 11, 12])
    assert drafts(cache, 1) == [10, 11, 12]


def test_texts_are_learned_without_a_sequence() -> None:
    cache = make_cache()
    cache.learn(ints(4, 3), ints(7, 8, 9, 10, 20, 21, 22), ("", "secret"))
    join(cache, 0, [7, 8], [9])
    assert drafts(cache) == [10]
    join(cache, 0, [20], [21])
    assert drafts(cache) == []  # of another salt, and nothing of it follows the text before


# ---------------------------------------------------------------------- what options do

COMMON = [7, 8, 20, 7, 8, 21, 7, 8, 20, 9, 7, 8]  # 7 8 is followed by 20, 21, 20


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {(20, 9, 7, 8, 20, 9, 7), (20, 7, 8, 21, 7, 8, 20), (21,)}),
        ({"copy_length": 1}, {(20,), (21,)}),
        ({"copy_length": 1, "max_paths": 1}, {(20,)}),
        ({"copy_length": 1, "vocab_size": 21}, {(20,)}),
        ({"copy_length": 1, "min_match": 3}, {(20,)}),  # raw
        ({"min_match": 3, "mode": Mode.TURBO}, set()),
        ({"copy_length": 2, "mode": Mode.RAW}, {(20, 9)}),
        ({"copy_length": 2, "mode": Mode.RAW, "raw_paths": 3}, {(20, 9), (20, 7), (21, 7)}),
        ({"mode": Mode.RAW, "raw_min": 3, "raw_max": 3}, set()),
        ({"max_len": 14}, {(20, 9), (20, 7), (21,)}),
        ({"max_len": 12}, set()),
        ({"eos_ids": (20,)}, {(20,), (21, 7, 8, 20)}),
    ],
)
def test_options_shape_trees(change: dict[str, Any], expected: set[tuple[int, ...]]) -> None:
    cache = make_cache(replace(DEFAULTS, **change))
    join(cache, 0, COMMON)
    assert paths(cache) == expected


def test_the_longest_match_counts() -> None:
    text = [*(9, 1, 2, 30), *(1, 2, 31), *(1, 2, 31), *(9, 1, 2)]
    for max_match, expected in ((3, 30), (2, 31)):
        options = replace(DEFAULTS, max_match=max_match, copy_length=1, max_paths=1)
        cache = make_cache(options)
        join(cache, 0, text)
        assert drafts(cache) == [expected]


def test_a_sequence_trusts_its_own_tokens_more_by_the_start_weight() -> None:
    for start_weight, expected in ((10.0, 30), (0.0, 31)):
        cache = make_cache(replace(DEFAULTS, start_weight=start_weight, copy_length=1))
        cache.learn(ints(3, 3, 3, 3, 3), ints(*[7, 8, 31] * 5), ())
        join(cache, 0, [7, 8, 30, 7, 8])
        assert drafts(cache)[0] == expected


def test_without_a_table_sequences_do_not_learn_from_each_other() -> None:
    cache = make_cache(replace(DEFAULTS, has_table=False))
    assert cache.table_bytes == 0
    join(cache, 0, [7, 8, 9, 10])
    join(cache, 1, [7, 8])
    assert drafts(cache, 1) == []
    join(cache, 1, [7, 8, 30, 7, 8])
    assert drafts(cache, 1)[:1] == [30]


def test_a_full_cell_evicts_rare_entries_then_decays() -> None:
    """Room for two tokens behind 7 8; 40 is common, 41 not, and 42 comes."""

    def follow(change: dict[str, Any], *followers: int) -> set[int]:
        options = replace(DEFAULTS, mode=Mode.TURBO, cell_size=2, copy_length=1, max_match=2)
        cache = make_cache(replace(options, **change))
        for follower in followers:
            cache.learn(ints(3), ints(7, 8, follower), ())
        join(cache, 0, [7], [8])
        return set(drafts(cache))

    assert follow({}, 40, 40, 41, 42) == {40, 42}
    assert follow({"cell_size": 3, "max_paths": 3}, 40, 40, 41, 42) == {40, 41, 42}
    # 41 is above the threshold, and the less common one still goes.
    assert follow({}, 40, 40, 40, 41, 41, 42) == {40, 42}
    # A high threshold makes the least recent go, however common it is.
    assert follow({"threshold": 9.0}, 40, 40, 40, 41, 41, 42) == {41, 42}
    # Once decayed below one, the common one is overtaken.
    assert follow({"decay": 0.1, "max_paths": 1}, 40, 40, 40, 41, 41, 42) == {42}
    assert follow({"decay": 1.0, "max_paths": 1}, 40, 40, 40, 41, 41, 42) == {40}


def test_the_candidates_of_a_cell_are_limited_before_the_sequence_adds_its_own() -> None:
    for cell_top, expected in ((2, {(40,), (41,)}), (1, {(40,)})):
        cache = make_cache(replace(DEFAULTS, mode=Mode.TURBO, copy_length=1, cell_top=cell_top))
        cache.learn(ints(3, 3, 3), ints(7, 8, 40, 7, 8, 40, 7, 8, 41), ())
        join(cache, 0, [7], [8])
        assert paths(cache) == expected


def test_an_end_of_sequence_token_clears_the_context() -> None:
    cache = make_cache(replace(DEFAULTS, has_table=False))
    join(cache, 0, [7, 8, 9, EOS, 7, 8])  # one of the prompt's own, between turns
    assert drafts(cache)[:1] == [9]
    append(cache, 0, [EOS, 7, 8])
    assert drafts(cache) == []


def test_a_skipped_prompt_is_not_learned() -> None:
    cache = make_cache()
    join(cache, 0, [7, 8, 9, 7, 8], skips=True)
    join(cache, 1, [7], [8])
    assert drafts(cache, 0) == drafts(cache, 1) == []
    append(cache, 0, [30, 7, 8])
    assert drafts(cache, 1)[:3] == [30, 7, 8]


def test_rows_share_the_target_parallelism_by_their_hits() -> None:
    options = replace(DEFAULTS, mode=Mode.RAW, target_parallelism=2 + 8)
    cache = make_cache(options)
    for slot in (0, 1):
        join(cache, slot, [7, 8, 9, 10] * 4)
    slots, most = ints(0, 1), ints(20, 20)
    assert cache.draft(slots, most).num_nodes.tolist() == [4, 4]
    for other in range(50, 56):  # slot 0 continues as drafted, slot 1 never does
        right = [token for token, *_ in rows_of(cache.draft(slots, most))[0]]
        cache.append(slots, ints(len(right), 1), ints(*right, other))
        append(cache, 1, [7, 8, 9, 10])
    sizes = cache.draft(slots, most).num_nodes.tolist()
    assert sizes[0] > 4 > sizes[1]
    assert sum(sizes) <= 8
    alone = cache.draft(ints(0), ints(20)).num_nodes.tolist()
    assert alone == [7]  # within the limit no draft is shortened


# ---------------------------------------------------------------------- the C ABI


def test_bad_columns_are_rejected() -> None:
    cache = make_cache()
    join(cache, 0, [1, 2, 3])
    with pytest.raises(ValueError, match="slots must lie in 0 to 2"):
        cache.draft(ints(3), ints(1))
    with pytest.raises(ValueError, match="a column must be int32"):
        cache.append(ints(0), ints(2), ints(1))
    with pytest.raises(ValueError, match="1 salts for 2 sequences"):
        cache.learn(ints(1, 1), ints(1, 2), ("one",))
    with pytest.raises(ValueError, match="a column must be float32"):
        LookaheadCache(kernels_of(NATIVE[0], 1), DEFAULTS, PRIORS[:5])
    with pytest.raises(ValueError, match="a table of 120 bytes has no room for a cell"):
        make_cache(replace(DEFAULTS, num_tokens=1))


def test_both_sides_agree_on_every_field(tmp_path: Path) -> None:
    pairs = {
        "LookaheadOptions": lookahead._Options,
        "LookaheadSequences": lookahead._Sequences,
        "LookaheadTokens": lookahead._Tokens,
        "LookaheadTrees": lookahead._Trees,
        "DraftTrees": draft_trees.TreesView,
        "DraftLimits": draft_selector._Limits,
        "SelectedDrafts": draft_selector._Selected,
    }
    constants = ["MAX_MATCH", "MAX_TREE", "MAX_PATHS", "MAX_CELL", "WEIGHT_ONE", "NUM_CLASSES"]
    expected, numbers = [], []
    for name, struct in pairs.items():
        expected += [ctypes.sizeof(struct)]
        numbers += [f"sizeof({name})"]
        for field, *_ in struct._fields_:
            expected += [getattr(struct, field).offset]
            numbers += [f"offsetof({name}, {field})"]
    expected += [getattr(lookahead, name) for name in constants]
    numbers += constants
    lines = ['#include "lookahead/draft_tree.h"', '#include "drafts/draft_selector.h"']
    lines += ["#include <cstddef>", "#include <cstdio>"]
    lines += ["int main() {", *(f'std::printf("%d\\n", int({n}));' for n in numbers), "}"]
    (tmp_path / "layout.cpp").write_text("\n".join(lines))
    flags = ["-std=c++17", *build.include_flags(), "-o", str(tmp_path / "layout")]
    subprocess.run([*build.find_compiler(), *flags, str(tmp_path / "layout.cpp")], check=True)
    printed = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True)
    assert [int(word) for word in printed.stdout.split()] == expected
