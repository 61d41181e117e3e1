from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.packed_trees import Tree, pack, path_of, trees
from support.plans import ints
from taco_kernels.native.draft_selector import DraftSelector
from taco_kernels.native.draft_trees import DraftTrees
from taco_worker.speculation.drafter import chains

SLOTS = np.arange(3, dtype=np.int32)


def three_chains() -> DraftTrees:
    """Classes 0 (nearly always accepted), 1 (half) and 2 (nearly always rejected)."""
    return chains([ints([1, 2, 3, 4])] * 3, [ints([row] * 4) for row in range(3)])


def selector_of(base: float | None = None, per_token: float = 0.0) -> DraftSelector:
    """A selector that measured steps of `base` + n * `per_token` seconds; None: no step."""
    selector = DraftSelector(np.array([0.97, 0.5, 0.03], dtype=np.float32), 8)
    if base is not None:
        for _ in range(40):
            for num_tokens in (1, 2, 3, 4, 6, 8, 12, 16):
                selector.observe_step(num_tokens, base + per_token * num_tokens)
    return selector


def num_chosen(selector: DraftSelector) -> list[int]:
    return selector.select(three_chains(), SLOTS, num_other_tokens=3).trees.num_nodes.tolist()


def test_selects_nothing_before_a_step_has_been_measured() -> None:
    chosen = selector_of().select(three_chains(), SLOTS, num_other_tokens=3)
    assert chosen.trees.num_nodes.tolist() == [0, 0, 0]
    assert (chosen.gain, chosen.plain_seconds) == (1.0, 0.0)


def test_selects_all_likely_drafts_if_tokens_cost_little() -> None:
    chosen = num_chosen(selector_of(1.0, 0.015))
    assert chosen[0] == 4
    assert chosen[1] >= 2
    assert chosen[2] == 0


def test_selects_nothing_if_a_token_costs_a_step() -> None:
    assert num_chosen(selector_of(0.0, 1.0)) == [0, 0, 0]


def test_selects_nearly_certain_drafts_at_medium_cost() -> None:
    assert num_chosen(selector_of(1.0, 0.25)) == [4, 0, 0]


@given(st.lists(trees(), min_size=1, max_size=4), st.floats(0.0, 0.5), st.floats(0.0, 2.0))
def test_selection_has_the_best_goodput_of_all_sizes(
    rows: list[Tree], per_token: float, draft_seconds: float
) -> None:
    packed = pack(rows)
    priors = np.random.default_rng(0).uniform(0.05, 0.95, packed.classes.size + 1)
    selector = DraftSelector(priors.astype(np.float32), len(rows))
    for num_tokens in (len(rows), 64):
        selector.observe_step(num_tokens, 1.0 + per_token * num_tokens)
    slots = ints(range(len(rows)))
    chosen = selector.select(
        packed,
        slots,
        num_other_tokens=len(rows),
        max_branches=99,
        draft_seconds=draft_seconds,
    )
    probabilities = np.sort(selector.probabilities(packed, slots))[::-1]
    tokens = len(rows) + np.concatenate([[0.0], np.cumsum(probabilities)])
    seconds = selector.step_seconds(len(rows), tokens.size)
    goodput = tokens / seconds
    best = int(goodput.argmax())
    if goodput[best] < 1.03 * goodput[0]:
        best = 0
    assert chosen.trees.token_ids.size == best
    gain = tokens[best] / (seconds[best] + draft_seconds) / goodput[0]
    assert chosen.gain == pytest.approx(gain)
    assert chosen.plain_seconds == pytest.approx(seconds[0])
    assert are_part(chosen.trees, rows)


def are_part(some: DraftTrees, rows: list[Tree]) -> bool:
    """Whether these are trees of paths from the roots of `rows`."""
    ends = np.cumsum(some.num_nodes)
    for row, (end, size) in enumerate(zip(ends.tolist(), some.num_nodes.tolist(), strict=True)):
        columns = (some.token_ids, some.parents, some.classes)
        nodes = list(zip(*(c[end - size : end].tolist() for c in columns), strict=True))
        tree = [(token, parent) for token, parent, _ in nodes]
        first_class = sum(map(len, rows[:row]))
        for node, (_, _, kind) in enumerate(nodes):
            if path_of(tree, node) != path_of(rows[row], kind - first_class):
                return False
    return True


@given(st.lists(trees(), min_size=2, max_size=4), st.integers(0, 4))
def test_branches_beyond_the_limit_are_dropped(rows: list[Tree], max_branches: int) -> None:
    packed = pack(rows)
    selector = DraftSelector(np.full(packed.classes.size + 1, 0.5, np.float32), len(rows))
    for num_tokens in (1, 4096):
        selector.observe_step(num_tokens, 1.0)
    chosen = selector.select(
        packed,
        ints(range(len(rows))),
        num_other_tokens=len(rows),
        has_one_path=np.array([row == 0 for row in range(len(rows))]),
        max_branches=max_branches,
    ).trees
    assert are_part(chosen, rows)
    left = max_branches
    for row, size in enumerate(chosen.num_nodes.tolist()):
        parents = [parent for _, parent in rows[row]]
        branches = [node for node, parent in enumerate(parents) if parent != node - 1]
        if row and len(branches) <= left:
            left -= len(branches)
            assert size == len(parents)
        else:
            assert size == (branches[0] if branches else len(parents))


def test_probabilities_multiply_along_a_path() -> None:
    tree = DraftTrees(ints([3]), ints([5, 6, 7]), ints([-1, 0, 0]), ints([0, 1, 2]))
    probabilities = selector_of().probabilities(tree, SLOTS[:1])
    assert probabilities == pytest.approx([0.97, 0.97 * 0.5, 0.97 * 0.03], rel=1e-6)


def learn(selector: DraftSelector, tokens: list[int], times: int) -> None:
    """A chain 1, 2, 3, 4 of class 1, and the tokens that came instead."""
    tree = chains([ints([1, 2, 3, 4])], [ints([1] * 4)])
    for _ in range(times):
        selector.select(tree, SLOTS[:1], num_other_tokens=1)
        selector.learn(SLOTS[:1], ints([len(tokens)]), ints(tokens))


def first_chance(selector: DraftSelector, slot: int = 0) -> float:
    tree = chains([ints([1])], [ints([1])])
    return float(selector.probabilities(tree, ints([slot]))[0])


def test_acceptance_raises_and_rejection_lowers_probabilities() -> None:
    selector = selector_of()
    learn(selector, [1, 2, 3, 4, 9], 50)
    assert first_chance(selector) > 0.9
    learn(selector, [8], 200)
    assert first_chance(selector) < 0.1


def test_unverified_drafts_update_the_statistics() -> None:
    selector = selector_of()
    learn(selector, [1], 60)  # one token, the first draft, though nothing was verified
    assert first_chance(selector) > 0.9


def test_rejections_of_a_sequence_affect_it_more_than_others() -> None:
    selector = selector_of()
    learn(selector, [8], 3)
    assert first_chance(selector, slot=0) < 0.7 * first_chance(selector, slot=1)
    selector.start(ints([0]))
    assert first_chance(selector, slot=0) == pytest.approx(first_chance(selector, slot=1))


@dataclass
class Learned:
    """What is to be learned of drafts, written down plainly: (seen, right) by class, and (expected,
    right) by slot, each of which fades."""

    classes: dict[int, tuple[float, float]] = field(default_factory=dict)
    slots: dict[int, tuple[float, float]] = field(default_factory=dict)

    def chance(self, kind: int, slot: int) -> float:
        seen, right = self.classes.get(kind, (4.0, 2.0))
        expected, was_right = self.slots.get(slot, (2.0, 2.0))
        return min(0.98, right / seen * was_right / expected)

    def learn(self, judged: list[tuple[int, int, bool]]) -> None:
        """Class, slot and fate of nodes."""
        believed = dict(self.classes)
        for kind, slot, is_right in judged:
            seen, right = believed.get(kind, (4.0, 2.0))
            expected, was_right = self.slots.get(slot, (2.0, 2.0))
            self.slots[slot] = (expected + right / seen, was_right + is_right)
            seen, right = self.classes.get(kind, (4.0, 2.0))
            self.classes[kind] = (seen + 1, right + is_right)
        for counts, limit in ((self.classes, 400.0), (self.slots, 24.0)):
            for key, (whole, part) in counts.items():
                counts[key] = (whole * min(1.0, limit / whole), part * min(1.0, limit / whole))


@given(st.data())
def test_statistics_follow_the_rules(data: st.DataObject) -> None:
    rows = data.draw(st.lists(trees(), min_size=1, max_size=3))
    packed, slots = pack(rows), ints(range(len(rows)))
    packed = DraftTrees(packed.num_nodes, packed.token_ids, packed.parents, packed.classes % 3)
    selector = DraftSelector(np.full(3, 0.5, dtype=np.float32), 4)
    rules = Learned()
    for _ in range(data.draw(st.integers(1, 12))):
        answers = [
            data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=4), label="answer")
            for _ in rows
        ]
        order = data.draw(st.permutations(range(len(rows) + 1)), label="order of the output")
        answers.append([1])  # of a row that had no drafts
        selector.select(packed, slots, num_other_tokens=len(rows))
        selector.learn(
            ints(order),
            ints([len(answers[row]) for row in order]),
            ints([token for row in order for token in answers[row]]),
        )
        judged: list[tuple[int, int, bool]] = []
        kinds = iter(packed.classes.tolist())
        for slot, tree in enumerate(rows):
            for node in range(len(tree)):
                path, kind = path_of(tree, node), next(kinds)
                came = tuple(answers[slot][: len(path)])
                if len(came) == len(path) and path[:-1] == came[:-1]:
                    judged.append((kind, slot, path == came))
        rules.learn(judged)
    single = chains([ints([0])] * 9, [ints([kind]) for kind in range(3)] * 3)
    found = selector.probabilities(single, ints([0] * 3 + [1] * 3 + [2] * 3))
    expected = [rules.chance(kind, slot) for slot in range(3) for kind in range(3)]
    assert found == pytest.approx(expected)


def test_columns_of_other_types_are_rejected() -> None:
    with pytest.raises(ValueError, match="int32 columns"):
        selector_of().select(three_chains(), SLOTS.astype(np.int64), num_other_tokens=3)
