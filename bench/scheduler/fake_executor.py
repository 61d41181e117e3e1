"""A simulated worker that costs nothing: it samples at once and only tracks sequence lengths."""

import time
from collections.abc import Callable

import numpy as np

from taco_proto.grammars import GrammarCommand, GrammarReady
from taco_proto.kv_tiers import StoreCommand, StoreReport
from taco_proto.steps import IntArray, StepOutput, StepPlan, WorkerInfo


class FakeExecutor:
    """A `StepExecutor` that returns the given token ids in a cycle.

    Args:
        info: the worker's description of itself.
        token_ids: tokens that it samples in turn, the same for every sequence.
        step_seconds: duration of a step; 0: none.
    """

    is_broken = False

    def __init__(self, info: WorkerInfo, token_ids: IntArray, *, step_seconds: float = 0.0) -> None:
        self.info = info
        self._tokens = token_ids
        self._step_seconds = step_seconds
        self._num_known = np.zeros(info.max_num_seqs, dtype=np.int64)
        self._num_computed = np.zeros(info.max_num_seqs, dtype=np.int64)
        self._next_step = 0.0

    def execute(self, plan: StepPlan) -> StepOutput:
        if plan.joined is not None:
            self._num_known[plan.joined.slots] = plan.joined.num_tokens
            self._num_computed[plan.joined.slots] = plan.joined.num_computed_tokens
        self._num_computed[plan.slots] += plan.num_tokens
        sampled = plan.slots[self._num_computed[plan.slots] >= self._num_known[plan.slots]]
        token_ids = self._tokens[self._num_known[sampled] % len(self._tokens)]
        self._num_known[sampled] += 1
        self._wait_for_step()
        return StepOutput(
            epoch=plan.epoch, step_id=plan.step_id, slots=sampled, token_ids=token_ids
        )

    def submit(self, plan: StepPlan, deliver: Callable[[StepOutput], None]) -> None:
        deliver(self.execute(plan))

    def set_grammars(self, command: GrammarCommand, report: Callable[[GrammarReady], None]) -> None:
        for grammar in command.compiled:
            report(GrammarReady(grammar.hash))

    def store(self, command: StoreCommand, report: Callable[[StoreReport], None]) -> None:
        """Reports the command as complete without writing: this executor has no disk tier."""
        report(StoreReport(is_complete=True))

    def tune(self) -> bool:
        return False

    def _wait_for_step(self) -> None:
        """Waits so that steps end `step_seconds` apart, or not at all if the caller is behind."""
        now = time.perf_counter()
        self._next_step = max(self._next_step + self._step_seconds, now)
        if self._next_step > now:
            time.sleep(self._next_step - now)
