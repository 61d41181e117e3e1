"""Speculative decoding of one replica: its draft worker, if it has one, and the draft limits."""

from collections.abc import Callable

from taco_proto.config import SchedulerConfig
from taco_proto.drafts import DrafterInfo
from taco_proto.steps import StepOutput
from taco_scheduler.admission.validation import check_drafter
from taco_scheduler.speculation.draft_client import DraftClient, NoDraftClient
from taco_scheduler.speculation.draft_length_limits import DraftLengthLimits
from taco_scheduler.state.counters import Counters
from taco_scheduler.state.in_flight import InFlightStep
from taco_scheduler.state.worker_state import WorkerState


class Speculation:
    """Attaches and detaches a replica's draft worker.

    Attributes:
        client: the draft worker's client; a `NoDraftClient` while there is no draft worker.
        limits: the draft tokens that sequences may verify.
    """

    def __init__(
        self,
        worker: WorkerState,
        config: SchedulerConfig,
        counters: Counters,
        num_requests: Callable[[], int],
    ) -> None:
        self.client: DraftClient | NoDraftClient = NoDraftClient()
        self.limits = DraftLengthLimits(
            worker.info.max_draft_tokens,
            worker.info.max_forced_tokens,
            config.speculative_max_model_len,
            config.speculative_disable_by_batch_size,
            num_requests,
            lambda: worker.info.drafts_itself or self.client.is_drafting,
        )
        self._worker = worker
        self._max_drafts = config.num_speculative_tokens
        self._counters = counters

    @property
    def has_draft_worker(self) -> bool:
        return isinstance(self.client, DraftClient)

    def attach(self, info: DrafterInfo) -> None:
        """Attach a draft worker, which knows no sequence yet.

        Raises:
            InvalidWorkerError: its drafts do not fit the worker.
        """
        check_drafter(info, self._worker.info)
        assert not self.has_draft_worker
        self.client = DraftClient(info, self._worker, self.limits, self._max_drafts, self._counters)

    def detach(self) -> None:
        """Detach the draft worker: decoding continues without drafts."""
        self.client = NoDraftClient()

    def note_step(self, step: InFlightStep, output: StepOutput, now: float) -> None:
        """Record the drafts and the time of a step that has succeeded."""
        self._counters.num_invalid_drafts += output.num_invalid_drafts
        self.client.note_step(step, output, now)
