"""Trees after grammars: refused drafts are gone, and forced tokens come first."""

from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from support.checkpoint_tokenizer import EOS_TOKEN_ID, save_tokenizer
from support.plans import ints
from taco_kernels.native.draft_trees import DraftTrees, are_trees
from taco_proto.steps import IntArray
from taco_worker.batch.input_batch import StepRows
from taco_worker.grammars.slot_matchers import SlotMatcher
from taco_worker.grammars.vocabulary import load_vocabulary
from taco_worker.speculation.grammar_drafter import GrammarDrafter, with_chains
from taco_worker.step_metrics import StepMetrics

Node = tuple[int, int]


class Matchers:
    """As `SlotMatchers`, by slot, with the tokens that each has not read."""

    def __init__(self, by_slot: dict[int, tuple[LLMatcher, int]]) -> None:
        self._by_slot = by_slot

    def find(self, slots: IntArray, *, reads: bool) -> list[SlotMatcher]:
        return [
            SlotMatcher(index, matcher, 0 if reads else num_unread)
            for index, slot in enumerate(slots.tolist())
            for matcher, num_unread in [self._by_slot.get(slot, (None, 0))]
            if matcher is not None
        ]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> LLTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    return load_vocabulary(folder, save_tokenizer(folder), (EOS_TOKEN_ID,))


def matcher(tokenizer: LLTokenizer, lark: str, begin: str = "") -> LLMatcher:
    made = LLMatcher(tokenizer, lark, log_level=0)
    assert not begin or made.consume_tokens(tokenizer.tokenize_str(begin))
    return made


def drafter(
    by_slot: dict[int, tuple[LLMatcher, int]],
    *,
    max_tokens: int = 15,
    max_rows: int = 100,
    knows_tokens: bool = True,
) -> GrammarDrafter:
    return GrammarDrafter(
        Matchers(by_slot),  # type: ignore[arg-type]
        StepMetrics(),
        max_tokens=max_tokens,
        max_rows=max_rows,
        end_tokens=(EOS_TOKEN_ID,),
        knows_tokens=knows_tokens,
    )


def trees_of(*rows: list[Node]) -> DraftTrees:
    nodes = [node for row in rows for node in row]
    return DraftTrees(
        ints([len(row) for row in rows]),
        ints([token for token, _ in nodes]),
        ints([parent for _, parent in nodes]),
        ints(range(len(nodes))),
    )


def nodes_of(trees: DraftTrees) -> list[list[Node]]:
    assert are_trees(trees, np.full_like(trees.num_nodes, 100), 1000, 100)
    ends = np.cumsum(trees.num_nodes).tolist()
    nodes = list(zip(trees.token_ids.tolist(), trees.parents.tolist(), strict=True))
    return [nodes[end - size : end] for end, size in zip(ends, trees.num_nodes, strict=True)]


def rows_of(max_drafts: list[int]) -> StepRows:
    count = len(max_drafts)
    ones = np.ones(count, dtype=np.int32)
    return StepRows(ints(range(count)), 5 * ones, ones, ones.astype(np.bool_), ints(max_drafts))


def test_refused_drafts_and_those_behind_them_are_removed(tokenizer: LLTokenizer) -> None:
    a, b, c, d = (tokenizer.tokenize_str(letter)[0] for letter in "abcd")
    made = drafter({1: (matcher(tokenizer, "start: /[ab]{2}[cd]{3}/"), 0)})
    free = [(c, -1), (d, 0)]
    tree = [(a, -1), (c, 0), (d, 1), (b, 0), (c, 3), (d, 3), (c, -1), (c, 6), (b, -1), (a, 8)]
    trees = trees_of(free, tree, [], free)
    kept = made.without_refused(trees, ints([0, 1, 2, 3]))
    assert nodes_of(kept) == [
        free,
        [(a, -1), (b, 0), (c, 1), (d, 1), (b, -1), (a, 4)],
        [],
        free,
    ]
    assert kept.classes.tolist() == [0, 1, 2, 5, 6, 7, 10, 11, 12, 13]


def test_forced_tokens_replace_trees_that_do_not_begin_with_them() -> None:
    longer = [(7, -1), (8, 0), (9, 1), (4, 1)]
    trees = trees_of(longer, [(7, -1)], [], [(3, -1), (4, -1)], [(7, -1), (8, -1)])
    chains = {0: [7, 8], 1: [7, 8], 2: [5], 4: [7, 8]}
    assert nodes_of(with_chains(trees, chains)) == [
        longer,
        [(7, -1), (8, 0)],
        [(5, -1)],
        [(3, -1), (4, -1)],
        [(7, -1), (8, 0)],
    ]
    assert with_chains(trees, {}) is trees


def test_chains_are_cut_to_the_room_of_their_rows(tokenizer: LLTokenizer) -> None:
    text = "a text that is forced"
    whole = tokenizer.tokenize_str(text)

    def chain_of(max_drafts: int, **limits: Any) -> list[int]:
        made = drafter({0: (matcher(tokenizer, f'start: "{text}"'), 0)}, **limits)
        trees = made.draft(rows_of([max_drafts])).trees
        return [] if trees is None else trees.token_ids.tolist()

    assert len(whole) > 6
    assert chain_of(100, max_tokens=100) == whole
    assert chain_of(4) == whole[:4]
    assert chain_of(0) == []
    assert chain_of(100, max_tokens=2) == whole[:2]
    assert chain_of(100, max_tokens=0) == []
    assert chain_of(100, max_rows=4) == whole[:3], "the token before them takes a row"
    assert chain_of(100, max_rows=1) == []


def test_tokens_in_flight_are_the_first_of_the_chain(tokenizer: LLTokenizer) -> None:
    lark = 'start: "the whole text" /[ab]/ "!"'
    whole = tokenizer.tokenize_str("the whole text")
    for num_unread in range(len(whole) + 3):
        made = drafter({0: (matcher(tokenizer, lark), num_unread)}, knows_tokens=False)
        rows = made.draft(rows_of([2]))
        expected = whole[num_unread : num_unread + 2]
        assert ([] if rows.trees is None else rows.trees.token_ids.tolist()) == expected
        assert rows.are_forced == bool(expected)
