"""Counters of draft tokens: verified and accepted, by depth."""

from dataclasses import dataclass, field

import numpy as np

from taco_common.histogram import Histogram
from taco_proto.steps import IntArray, StepOutput

DRAFTS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)


def _depths() -> IntArray:
    return np.zeros(0, dtype=np.int32)


@dataclass(slots=True)
class SpeculationCounters:
    """Totals of drafts. An iteration is one decode step of a sequence that may verify drafts.

    Attributes:
        num_sequences: sequences that have run.
        num_drafted: iterations that verified drafts.
        num_hits: iterations in which a draft was accepted.
        draft_tokens, accepted_tokens: verified and accepted draft tokens.
        accepted_at: iterations in which the draft of depth 1, 2, ... was accepted.
        draft_lengths: verified drafts of an iteration, as the draft-length controller chose.
    """

    num_sequences: int = 0
    num_iterations: int = 0
    num_drafted: int = 0
    num_hits: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_at: IntArray = field(default_factory=_depths)
    draft_lengths: Histogram = field(default_factory=lambda: Histogram(DRAFTS))

    def count(self, output: StepOutput, max_drafts: IntArray) -> None:
        """Count a step's output.

        Args:
            max_drafts: draft tokens that each row of the output may verify.
        """
        might = max_drafts > 0
        if not might.any():
            return
        num_iterations = int(np.count_nonzero(might))
        self.num_iterations += num_iterations
        if not output.num_drafts.size:
            self.draft_lengths.observe(0, num_iterations)
            return
        num_drafts, num_accepted = output.num_drafts[might], output.num_tokens[might] - 1
        self.num_drafted += int(np.count_nonzero(num_drafts))
        self.num_hits += int(np.count_nonzero(num_accepted))
        self.draft_tokens += int(num_drafts.sum())
        self.accepted_tokens += int(num_accepted.sum())
        for length, count in enumerate(np.bincount(num_drafts).tolist()):
            if count:
                self.draft_lengths.observe(length, count)
        # A row that accepted three drafts accepted those at depths 1 and 2 as well.
        at_least = np.bincount(num_accepted)[::-1].cumsum()[::-1][1:]
        if at_least.size > self.accepted_at.size:
            self.accepted_at = np.pad(self.accepted_at, (0, at_least.size - self.accepted_at.size))
        self.accepted_at[: at_least.size] += at_least

    def figures(self) -> dict[str, float]:
        """The eight figures of the lookahead cache; the first four are averages over sequences."""
        sequences = max(1, self.num_sequences)
        iterations, hits = max(1, self.num_iterations), max(1, self.num_hits)
        hit_len = self.accepted_tokens
        return {
            "num_iters": self.num_iterations / sequences,
            "hit_iters": self.num_hits / sequences,
            "hit_len": hit_len / sequences,
            "invalid_len": (self.draft_tokens - hit_len) / sequences,
            "hit_rate": self.num_hits / iterations,
            "global_average_hit_len": hit_len / iterations,
            "valid_average_hit_len": hit_len / hits,
            "hit_valid_rate": hit_len / max(1, self.draft_tokens),
        }
