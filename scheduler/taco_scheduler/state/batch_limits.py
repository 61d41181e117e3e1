"""Limits of one worker's running batch: its sequences, and the token budget of a step."""

from dataclasses import dataclass

from taco_proto.config import SchedulerConfig
from taco_proto.steps import WorkerInfo


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of the running batch.

    Attributes:
        max_num_seqs: sequences that run at a time.
        max_num_batched_tokens: token budget of a step.
    """

    max_num_seqs: int
    max_num_batched_tokens: int


def batch_limits(info: WorkerInfo, config: SchedulerConfig) -> BatchLimits:
    """The smaller ones of the scheduler's limits and the worker's."""
    budget = min(config.max_num_batched_tokens, info.max_num_batched_tokens)
    # Every running sequence gets at least one token a step: no more sequences than the budget.
    return BatchLimits(min(config.max_num_seqs, info.max_num_seqs, budget), budget)
