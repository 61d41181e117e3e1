"""The rows of recurrent states that the batch's slots read and write."""

from __future__ import annotations

import numpy as np

from taco_proto.steps import IntArray, JoinedSequences, StepPlan
from taco_worker.batch.plan_error import PlanError
from taco_worker.models.step_states import NO_STATE, StepStates


class SlotStates:
    """Which states the next step of each slot reads and writes.

    Rows of state memory: one for each slot, then one for each snapshot.
    """

    def __init__(self, max_num_seqs: int, num_snapshots: int) -> None:
        self._max_num_seqs = max_num_seqs
        self.num_snapshots = num_snapshots
        self._sources = np.full(max_num_seqs, NO_STATE, dtype=np.int32)
        self._saved_tokens = np.zeros(max_num_seqs, dtype=np.int32)
        self._saved_rows = np.zeros(max_num_seqs, dtype=np.int32)

    def join(self, joined: JoinedSequences) -> None:
        """Raises PlanError if a sequence has computed tokens but no snapshot that exists."""
        snapshots = joined.state_snapshots
        if not snapshots.size:
            snapshots = np.full_like(joined.slots, NO_STATE)
        if snapshots.size != joined.slots.size or snapshots.max() >= self.num_snapshots:
            raise PlanError("a joined sequence continues from a snapshot that does not exist")
        begins = snapshots < 0
        if (begins != (joined.num_computed_tokens == 0)).any():
            raise PlanError("a joined sequence continues without a snapshot, or begins from one")
        rows = np.where(begins, NO_STATE, self._max_num_seqs + snapshots)
        self._sources[joined.slots] = rows.astype(np.int32)

    def save(self, plan: StepPlan, num_computed_tokens: IntArray, num_new_tokens: IntArray) -> None:
        """Note which states the plan's step saves.

        Args:
            num_computed_tokens, num_new_tokens: of each of the plan's rows.

        Raises:
            PlanError: a row does not pass the position, or the snapshot does not exist.
        """
        self._saved_tokens[plan.slots] = 0
        slots = plan.saved_slots
        if not slots.size:
            return
        saved = np.full(self._max_num_seqs, -1, dtype=np.int32)
        saved[slots] = plan.saved_positions
        tokens = saved[plan.slots] - num_computed_tokens
        is_saved = saved[plan.slots] >= 0
        if (
            is_saved.sum() != slots.size
            or not slots.size == plan.saved_positions.size == plan.saved_snapshots.size
            or ((tokens < 1) | (tokens > num_new_tokens))[is_saved].any()
        ):
            raise PlanError("a step does not compute the token whose state it saves")
        rows = plan.saved_snapshots
        if rows.min() < 0 or rows.max() >= self.num_snapshots or np.unique(rows).size < rows.size:
            raise PlanError("a state is saved in a snapshot that does not exist, or two are in one")
        self._saved_tokens[plan.slots] = np.where(is_saved, tokens, 0)
        self._saved_rows[slots] = self._max_num_seqs + rows

    def of(self, slots: IntArray) -> StepStates:
        """The states of a step's rows."""
        return StepStates(
            slots, self._sources[slots], self._saved_tokens[slots], self._saved_rows[slots]
        )

    def are_own(self, slots: IntArray) -> bool:
        """Whether the next step of these slots reads their own rows."""
        return bool((self._sources[slots] == slots).all())

    def advance(self, slots: IntArray) -> None:
        """From now on the state of each slot is in its own row."""
        self._sources[slots] = slots
