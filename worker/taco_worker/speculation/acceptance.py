"""How often drafts are accepted: learned from every draft whose fate is known."""

from __future__ import annotations

import numpy as np

from taco_proto.steps import IntArray
from taco_worker.sampling.columns import Array
from taco_worker.speculation.drafter import DraftTrees, FloatArray
from taco_worker.speculation.verify import depths_below, global_parents

# Drafts that a prior weighs, and that what was seen at most weighs: older ones fade.
_PRIOR_WEIGHT = 4.0
_MAX_WEIGHT = 400.0
# The same for one sequence: what a text is like changes faster.
_SEQUENCE_PRIOR = 2.0
_SEQUENCE_MAX = 24.0
_MAX_CHANCE = 0.98


class Acceptance:
    """The chance of each node of a tree, from its class and from how its sequence has gone so far.

    Drafts that were not verified teach as well: when a sequence's next tokens are known, so is
    whether they would have been accepted. A drafter that is switched off for being wrong is thus
    switched on again once it is right.
    """

    def __init__(self, priors: FloatArray, max_num_seqs: int) -> None:
        self._seen = np.full(priors.size, _PRIOR_WEIGHT)
        self._right = priors * _PRIOR_WEIGHT
        self._sequence_expected = np.full(max_num_seqs, _SEQUENCE_PRIOR)
        self._sequence_right = np.full(max_num_seqs, _SEQUENCE_PRIOR)

    def start(self, slots: IntArray) -> None:
        """Other sequences stand in these slots now."""
        self._sequence_expected[slots] = self._sequence_right[slots] = _SEQUENCE_PRIOR

    def chances(self, trees: DraftTrees, slots: IntArray) -> Array:
        """float64 [sum(num_nodes)], of each node and all above it to be accepted."""
        above = global_parents(trees)
        chances = self._conditional(trees, slots)
        depths = depths_below(above)
        for depth in range(2, int(depths.max(initial=0)) + 1):
            nodes = np.flatnonzero(depths == depth)
            chances[nodes] *= chances[above[nodes]]
        return chances

    def learn(
        self, trees: DraftTrees, slots: IntArray, num_tokens: IntArray, token_ids: IntArray
    ) -> None:
        """What each sequence's next tokens turned out to be, `num_tokens` of each."""
        if not trees.token_ids.size:
            return
        above = global_parents(trees)
        depths = depths_below(above)
        rows = np.repeat(np.arange(slots.size), trees.num_nodes)
        starts = np.cumsum(num_tokens) - num_tokens
        is_known = depths <= num_tokens[rows]
        places = np.where(is_known, starts[rows] + depths - 1, 0)
        is_right = is_known & (trees.token_ids == token_ids[places])
        is_judged = is_known.copy()
        for depth in range(2, int(depths.max()) + 1):
            nodes = np.flatnonzero(depths == depth)
            is_judged[nodes] &= is_right[above[nodes]]
            is_right[nodes] &= is_judged[nodes]
        self._count(trees, slots[rows], is_judged, is_right)

    def _count(self, trees: DraftTrees, slots: Array, is_judged: Array, is_right: Array) -> None:
        classes, right = trees.classes[is_judged], is_right[is_judged]
        expected = (self._right / self._seen)[classes]
        num_classes = self._seen.size
        self._seen += np.bincount(classes, minlength=num_classes)
        self._right += np.bincount(classes, weights=right, minlength=num_classes)
        _fade(self._seen, self._right, _MAX_WEIGHT)
        judged_slots, num_slots = slots[is_judged], self._sequence_right.size
        self._sequence_expected += np.bincount(judged_slots, weights=expected, minlength=num_slots)
        self._sequence_right += np.bincount(judged_slots, weights=right, minlength=num_slots)
        _fade(self._sequence_expected, self._sequence_right, _SEQUENCE_MAX)

    def _conditional(self, trees: DraftTrees, slots: IntArray) -> Array:
        """Of each node, given that its parent is accepted."""
        mood = (self._sequence_right / self._sequence_expected)[np.repeat(slots, trees.num_nodes)]
        return np.minimum((self._right / self._seen)[trees.classes] * mood, _MAX_CHANCE)


def _fade(total: Array, part: Array, limit: float) -> None:
    factor = np.minimum(1.0, limit / total)
    total *= factor
    part *= factor
