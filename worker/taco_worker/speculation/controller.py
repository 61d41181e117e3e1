"""Chooses which drafts are worth verifying in a step."""

from __future__ import annotations

import numpy as np

from taco_proto.steps import IntArray
from taco_worker.sampling.columns import Array
from taco_worker.speculation.acceptance import Acceptance
from taco_worker.speculation.drafter import DraftTrees, no_drafts
from taco_worker.speculation.rest import Rest
from taco_worker.speculation.step_times import StepTimes
from taco_worker.speculation.verify import select_nodes

# What speculation must promise before it is tried: estimates are noisy, and plain decoding is safe.
_MIN_GAIN = 1.03


class Controller:
    """Takes the likeliest nodes of all trees for as long as they raise tokens a second.

    The goodput of a step with m drafts is the tokens that it is expected to give over the time that
    it is expected to take (as in Liu et al., "Optimizing Speculative Decoding for Serving Large
    Language Models Using Goodput", 2024), here over the nodes of trees and with both learned as
    steps run. One list of nodes for the whole batch: a draft is verified where it helps most.
    """

    def __init__(self, acceptance: Acceptance, step_times: StepTimes) -> None:
        self._acceptance = acceptance
        self._step_times = step_times

    def choose(
        self, trees: DraftTrees, slots: IntArray, num_other_tokens: int, rest: Rest
    ) -> DraftTrees:
        """The part of the trees that is worth it.

        Args:
            slots: the trees' rows; a row without nodes counts, since it gives a token all the same.
            num_other_tokens: what the step computes beside drafts.
            rest: is told what drafting gained.
        """
        num_nodes = trees.token_ids.size
        if not self._step_times.is_ready:
            return no_drafts(slots.size)
        chances = self._acceptance.chances(trees, slots)
        # A child is no likelier than its parent and stands behind it: any head of this order is a
        # set of whole trees.
        order = np.argsort(-chances, kind="stable")
        tokens = slots.size + np.concatenate([[0.0], np.cumsum(chances[order])])
        seconds = self._step_times.estimate(num_other_tokens + np.arange(num_nodes + 1))
        goodput: Array = tokens / seconds
        best = int(goodput.argmax())
        if goodput[best] < _MIN_GAIN * goodput[0]:
            best = 0
        with_drafting = tokens[best] / (seconds[best] + rest.draft_seconds)
        rest.note_gain(with_drafting / goodput[0], seconds[0])
        is_kept = np.zeros(num_nodes, dtype=np.bool_)
        is_kept[order[:best]] = True
        return select_nodes(trees, is_kept)
