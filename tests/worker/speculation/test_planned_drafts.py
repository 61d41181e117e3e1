"""A draft worker's drafts beside the worker's own drafter."""

from __future__ import annotations

import numpy as np
import pytest

from support.drafters import KnowingDrafter
from support.every_draft import verify_every_draft
from support.plans import ints
from support.speculators import make_speculator
from taco_kernels.native.draft_trees import DraftTrees
from taco_proto.steps import IntArray, PlannedDrafts
from taco_worker.batch.input_batch import StepRows
from taco_worker.speculation.drafter import chains


class CountingDrafter(KnowingDrafter):
    """Drafts two tokens for each sequence, and keeps what it hears of verified drafts."""

    def __init__(self) -> None:
        super().__init__({}, branches=False)
        self.verified: dict[int, tuple[int, int]] = {}

    def draft(self, slots: IntArray, max_nodes: IntArray) -> DraftTrees:
        return chains([ints([7, 8])] * slots.size, [ints([0, 0])] * slots.size)

    def append(self, slots: IntArray, num_tokens: IntArray, token_ids: IntArray) -> None:
        pass

    def record_verified(
        self, slots: IntArray, num_drafts: IntArray, num_accepted: IntArray
    ) -> None:
        rows = zip(slots.tolist(), num_drafts.tolist(), num_accepted.tolist(), strict=True)
        self.verified = {slot: (drafted, accepted) for slot, drafted, accepted in rows}


def test_the_drafter_hears_only_of_its_own_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots 0 and 2 have drafts of the draft worker. Those of slot 2 are stale."""
    verify_every_draft(monkeypatch)
    drafter = CountingDrafter()
    speculator = make_speculator(drafter)
    slots = ints([0, 1, 2])
    speculator._is_followed[slots] = True
    speculator._batch.num_tokens[slots] = 9
    ones = np.ones(3, dtype=np.int32)
    rows = StepRows(slots, 8 * ones, ones, ones.astype(np.bool_), 4 * ones)
    planned = PlannedDrafts(
        slots=ints([0, 2]),
        num_tokens=ints([9, 8]),
        num_drafts=ints([3, 3]),
        token_ids=ints([5] * 6),
    )
    for plan, expected in (
        (planned, {0: (0, 0), 1: (2, 1), 2: (2, 2)}),
        (None, {0: (2, 1), 1: (2, 1), 2: (2, 2)}),
    ):
        trees = speculator.draft(rows, plan).trees
        assert trees is not None
        assert trees.num_nodes.tolist() == [3 if plan is planned else 2, 2, 2]
        speculator.learn(slots, ints([2, 2, 3]), ints([5, 1, 7, 1, 7, 8, 1]), trees.num_nodes)
        assert drafter.verified == expected
