"""Averages of the lookahead cache's drafts over requests: hits, accepted and rejected tokens."""

from __future__ import annotations

import logging

import numpy as np

from taco_proto.steps import IntArray
from taco_worker.sampling.slot_params import Array

logger = logging.getLogger("taco.worker")

# Counts of a request, in the order of the log line.
_COUNTS = ("num_iters", "hit_iters", "hit_len", "invalid_len")
_RATIOS = ("hit_rate", "global_average_hit_len", "valid_average_hit_len", "hit_valid_rate")


class LookaheadMetrics:
    """Eight metrics, each the mean over all requests so far, running ones included.

    An iteration is a step that returned tokens of a request; it is a hit if at least one draft was
    accepted. A preempted request counts as another request after it has resumed.
    """

    def __init__(self, num_slots: int, log_interval: int | None = None) -> None:
        """Logs the metrics every `log_interval` iterations of the batch; None: never."""
        # Plain lists: for the few rows of a step NumPy would take ten times as long.
        self._counts = [[0] * len(_COUNTS) for _ in range(num_slots)]
        self._num_left = 0
        self._sums_of_left: Array = np.zeros(len(_COUNTS) + len(_RATIOS))
        self._log_interval = log_interval
        self._num_observed = 0

    def observe(self, slots: IntArray, num_drafts: IntArray, num_accepted: IntArray) -> None:
        """Count an iteration: the verified and the accepted drafts of each slot."""
        columns = (slots.tolist(), num_drafts.tolist(), num_accepted.tolist())
        for slot, drafted, accepted in zip(*columns, strict=True):
            counts = self._counts[slot]
            counts[0] += 1
            counts[1] += accepted > 0
            counts[2] += accepted
            counts[3] += drafted - accepted
        self._num_observed += 1
        if self._log_interval and self._num_observed % self._log_interval == 0:
            logger.info(self.line())

    def leave(self, slots: IntArray) -> None:
        numbers = slots.tolist()
        counts = self._of([self._counts[slot] for slot in numbers])
        self._num_left += counts.shape[0]
        self._sums_of_left += _with_ratios(counts).sum(axis=0)
        for slot in numbers:
            self._counts[slot] = [0] * len(_COUNTS)

    def clear(self) -> None:
        """Remove all requests."""
        self.leave(np.arange(len(self._counts), dtype=np.int32))

    def values(self) -> dict[str, float]:
        """The metrics by name; zeros before the first iteration."""
        running = self._of(self._counts)
        sums = self._sums_of_left + _with_ratios(running).sum(axis=0)
        means = sums / max(self._num_left + running.shape[0], 1)
        return dict(zip((*_COUNTS, *_RATIOS), means.tolist(), strict=True))

    @staticmethod
    def _of(counts: list[list[int]]) -> Array:
        """float64 [num_requests, 4], of requests with at least one iteration."""
        found: Array = np.array([row for row in counts if row[0]], dtype=np.float64)
        return found.reshape(-1, len(_COUNTS))

    def line(self) -> str:
        """The log line, in the format of earlier versions."""
        parts = [f"{name}: {value:.4f}" for name, value in self.values().items()]
        return ", ".join(parts).replace("hit_iters: ", "hit_iters:")


def _with_ratios(counts: Array) -> Array:
    """float64 [num_requests, 8]: counts, then ratios; a ratio to 0 is 0."""
    num_iters, hit_iters, hit_len, invalid_len = counts.T
    of = (num_iters, num_iters, hit_iters, hit_len + invalid_len)
    parts = (hit_iters, hit_len, hit_len, hit_len)
    ratios = [part / np.maximum(whole, 1) for part, whole in zip(parts, of, strict=True)]
    return np.concatenate([counts, np.stack(ratios, axis=1)], axis=1)
