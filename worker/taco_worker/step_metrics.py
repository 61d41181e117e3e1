"""Counters and a duration histogram of a worker's steps."""

from time import perf_counter

from taco_common.histogram import Histogram
from taco_proto.steps import StepOutput, StepPlan

_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0,
)  # fmt: skip


class StepMetrics:
    """Counts steps for metrics: a few additions a step, no lock.

    Steps begin in one thread and end in order, perhaps in another.

    Attributes:
        num_failed: failed steps.
        num_computed: tokens that steps were to compute, without drafts.
        num_given: tokens that steps returned, accepted drafts included.
        num_forced: drafts of steps that a grammar forced.
        seconds: duration from the step's begin, or from the end of the step before if that is
            later, to the step's end. When steps are launched ahead this is the device's time.
    """

    def __init__(self) -> None:
        self.num_failed = 0
        self.num_computed = 0
        self.num_given = 0
        self.num_forced = 0
        self.seconds = Histogram(_SECONDS)
        self._last_end = 0.0

    def begin(self, plan: StepPlan) -> float:
        """Count a planned step; pass the result to `end`."""
        self.num_computed += sum(plan.num_tokens.tolist())
        return perf_counter()

    def end(self, begun: float, output: StepOutput) -> None:
        now = perf_counter()
        self.seconds.observe(now - max(begun, self._last_end))
        self._last_end = now
        self.num_given += output.token_ids.size
        if output.error:
            self.num_failed += 1
