import numpy as np
import pytest

from taco_proto.steps import IntArray
from taco_worker.speculation.acceptance import Acceptance
from taco_worker.speculation.controller import Controller
from taco_worker.speculation.drafter import DraftTrees, chains
from taco_worker.speculation.rest import Rest
from taco_worker.speculation.step_times import StepTimes

SLOTS = np.arange(3, dtype=np.int32)


def ints(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int32)


def three_chains() -> DraftTrees:
    """Of the classes 0 (nearly always right), 1 (even) and 2 (nearly always wrong)."""
    return chains([ints([1, 2, 3, 4])] * 3, [ints([row] * 4) for row in range(3)])


def acceptance() -> Acceptance:
    return Acceptance(np.array([0.97, 0.5, 0.03], dtype=np.float32), 8)


def times(base: float, per_token: float) -> StepTimes:
    measured = StepTimes()
    for _ in range(40):
        for num_tokens in (1, 2, 3, 4, 6, 8, 12, 16):
            measured.observe(num_tokens, base + per_token * num_tokens)
    return measured


def num_chosen(step_times: StepTimes) -> list[int]:
    return (
        Controller(acceptance(), step_times)
        .choose(three_chains(), SLOTS, 3, Rest())
        .num_nodes.tolist()
    )


def test_nothing_is_chosen_before_a_step_has_been_measured() -> None:
    assert num_chosen(StepTimes()) == [0, 0, 0]


def test_where_rows_are_nearly_free_the_likely_are_all_taken() -> None:
    chosen = num_chosen(times(1.0, 0.015))
    assert chosen[0] == 4
    assert chosen[1] >= 2
    assert chosen[2] == 0


def test_where_rows_cost_as_much_as_steps_nothing_is_taken() -> None:
    assert num_chosen(times(0.0, 1.0)) == [0, 0, 0]


def test_in_between_only_what_is_nearly_certain() -> None:
    assert num_chosen(times(1.0, 0.25)) == [4, 0, 0]


def test_the_choice_is_the_best_of_all_numbers_of_nodes() -> None:
    learned, step_times = acceptance(), times(1.0, 0.06)
    trees = three_chains()
    chosen = Controller(learned, step_times).choose(trees, SLOTS, 3, Rest())
    chances = np.sort(learned.chances(trees, SLOTS))[::-1]
    goodput = [
        (3 + chances[:count].sum()) / step_times.estimate(np.array([3 + count]))[0]
        for count in range(13)
    ]
    assert chosen.token_ids.size == int(np.argmax(goodput))


def test_chances_multiply_along_a_path() -> None:
    tree = DraftTrees(ints([3]), ints([5, 6, 7]), ints([-1, 0, 0]), ints([0, 1, 2]))
    chances = acceptance().chances(tree, SLOTS[:1])
    assert chances == pytest.approx([0.97, 0.97 * 0.5, 0.97 * 0.03], rel=1e-6)


def learn(learned: Acceptance, tokens: list[int], times: int) -> None:
    """A chain 1, 2, 3, 4 of class 1, and what came instead."""
    tree = chains([ints([1, 2, 3, 4])], [ints([1] * 4)])
    for _ in range(times):
        learned.learn(tree, SLOTS[:1], ints([len(tokens)]), ints(tokens))


def first_chance(learned: Acceptance, slot: int = 0) -> float:
    tree = chains([ints([1])], [ints([1])])
    return float(learned.chances(tree, ints([slot]))[0])


def test_what_is_accepted_becomes_likelier_and_what_is_not_less() -> None:
    learned = acceptance()
    learn(learned, [1, 2, 3, 4, 9], 50)
    assert first_chance(learned) > 0.9
    learn(learned, [8], 200)
    assert first_chance(learned) < 0.1


def test_drafts_that_were_not_verified_teach_as_well() -> None:
    learned = acceptance()
    learn(learned, [1], 60)  # one token, the first draft, though nothing was verified
    assert first_chance(learned) > 0.9


def test_a_draft_behind_a_wrong_one_is_not_judged() -> None:
    learned = Acceptance(np.array([0.5, 0.5], dtype=np.float32), 8)
    tree = chains([ints([1, 2])], [ints([0, 1])])
    for _ in range(50):
        learned.learn(tree, SLOTS[:1], ints([2]), ints([7, 2]))
    assert first_chance(learned, slot=5) == pytest.approx(0.5)


def test_one_sequence_going_badly_says_more_of_itself_than_of_others() -> None:
    learned = acceptance()
    learn(learned, [8], 3)
    assert first_chance(learned, slot=0) < 0.7 * first_chance(learned, slot=1)
    learned.start(ints([0]))
    assert first_chance(learned, slot=0) == pytest.approx(first_chance(learned, slot=1))
