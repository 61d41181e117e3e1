"""The rows of recurrent states that slots read and write."""

from dataclasses import replace

import pytest

from support.plans import Join, ints, join, make_plan
from taco_proto.steps import StepPlan
from taco_worker.batch.plan_error import PlanError
from taco_worker.batch.slot_states import SlotStates
from taco_worker.models.step_states import NO_STATE

SLOTS = ints([2, 0])


def joined(states: SlotStates, *, snapshot: int = -1, num_computed: int = 0) -> None:
    sequence = Join(2, [5] * 8, [1], num_computed_tokens=num_computed)
    states.join(replace(join([sequence]), state_snapshots=ints([snapshot])))


def saving(position: int, snapshot: int, slot: int = 2) -> StepPlan:
    return replace(
        make_plan({2: 4, 0: 1}),
        saved_slots=ints([slot]),
        saved_positions=ints([position]),
        saved_snapshots=ints([snapshot]),
    )


def test_a_sequence_begins_and_goes_on_in_its_own_row() -> None:
    states = SlotStates(3, 5)
    joined(states)
    assert not states.are_own(ints([2]))
    assert states.of(ints([2])).sources.tolist() == [NO_STATE]
    states.advance(ints([2]))
    assert states.are_own(ints([2]))
    found = states.of(ints([2]))
    assert (found.rows.tolist(), found.sources.tolist()) == ([2], [2])
    joined(states)
    assert states.of(ints([2])).sources.tolist() == [NO_STATE]


def test_a_sequence_continues_from_a_snapshot() -> None:
    states = SlotStates(3, 5)
    joined(states, snapshot=4, num_computed=6)
    found = states.of(ints([2]))
    assert (found.rows.tolist(), found.sources.tolist()) == ([2], [3 + 4])


def test_a_state_is_saved_in_one_step() -> None:
    states = SlotStates(3, 5)
    states.save(saving(12, 1), ints([10, 7]), ints([4, 1]))
    found = states.of(SLOTS)
    assert found.saved_tokens.tolist() == [2, 0]
    assert found.saved_rows[0] == 3 + 1
    states.save(make_plan({2: 1, 0: 1}), ints([14, 8]), ints([1, 1]))
    assert states.of(SLOTS).saved_tokens.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("position", "is_passed"), [(10, False), (11, True), (14, True), (15, False)]
)
def test_a_step_must_compute_the_token(position: int, is_passed: bool) -> None:
    states = SlotStates(3, 5)
    if is_passed:
        states.save(saving(position, 0), ints([10, 7]), ints([4, 1]))
        return
    with pytest.raises(PlanError, match="does not compute"):
        states.save(saving(position, 0), ints([10, 7]), ints([4, 1]))


@pytest.mark.parametrize("snapshot", [-2, 5])
def test_a_snapshot_must_exist_to_be_written(snapshot: int) -> None:
    with pytest.raises(PlanError, match="does not exist"):
        SlotStates(3, 5).save(saving(11, snapshot), ints([10, 7]), ints([4, 1]))


def test_only_rows_of_the_step_are_saved() -> None:
    with pytest.raises(PlanError, match="does not compute"):
        SlotStates(3, 5).save(saving(1, 0, slot=1), ints([10, 7]), ints([4, 1]))


@pytest.mark.parametrize(("snapshot", "num_computed"), [(-1, 6), (3, 0), (5, 6)])
def test_computed_tokens_need_a_snapshot(snapshot: int, num_computed: int) -> None:
    with pytest.raises(PlanError, match="snapshot"):
        joined(SlotStates(3, 5), snapshot=snapshot, num_computed=num_computed)
