"""A replica's side of its draft worker, of which there may be one."""

from collections.abc import Callable

from taco_proto.config import SchedulerConfig
from taco_proto.drafts import DrafterInfo, DraftReply, DraftRequest
from taco_proto.steps import IntArray, PlannedDrafts, StepOutput
from taco_scheduler.admission.validation import check_drafter
from taco_scheduler.speculation.draft_client import DraftClient
from taco_scheduler.speculation.draft_length_limits import DraftLengthLimits
from taco_scheduler.state.batch import BoolArray
from taco_scheduler.state.counters import Counters
from taco_scheduler.state.in_flight import InFlightStep
from taco_scheduler.state.sequence import Sequence
from taco_scheduler.state.worker_state import WorkerState


class Speculation:
    """Without a draft worker everything here does nothing."""

    def __init__(
        self,
        worker: WorkerState,
        config: SchedulerConfig,
        counters: Counters,
        num_requests: Callable[[], int],
    ) -> None:
        self.limits = DraftLengthLimits(
            worker.info.max_draft_tokens,
            config.speculative_max_model_len,
            config.speculative_disable_by_batch_size,
            num_requests,
            self._may_come,
        )
        self._worker = worker
        self._max_drafts = config.num_speculative_tokens
        self._counters = counters
        self._drafting: DraftClient | None = None

    @property
    def is_taken(self) -> bool:
        """A draft worker is there."""
        return self._drafting is not None

    def attach(self, info: DrafterInfo) -> None:
        """A draft worker that knows no sequence yet is there.

        Raises:
            InvalidWorkerError: it cannot draft for the worker.
        """
        check_drafter(info, self._worker.info)
        assert self._drafting is None
        self._drafting = DraftClient(
            info, self._worker, self.limits, self._max_drafts, self._counters
        )

    def detach(self) -> None:
        """Decoding goes on without drafts."""
        self._drafting = None

    def request(self, now: float) -> DraftRequest | None:
        """What to ask the draft worker for before the next plan is made; None: nothing now."""
        return None if self._drafting is None else self._drafting.ask(now)

    def take(self, reply: DraftReply, now: float) -> None:
        if self._drafting is not None:
            self._drafting.take(reply, now)

    # -------------------------------------------------------- for the replica

    def deadline(self) -> float | None:
        return None if self._drafting is None else self._drafting.deadline()

    def held(self) -> BoolArray | None:
        return None if self._drafting is None else self._drafting.held()

    def planned(self, slots: IntArray, max_drafts: IntArray) -> PlannedDrafts | None:
        return None if self._drafting is None else self._drafting.planned(slots, max_drafts)

    def note_step(self, step: InFlightStep, output: StepOutput, now: float) -> None:
        self._counters.num_invalid_drafts += output.num_invalid_drafts
        if self._drafting is not None:
            self._drafting.note_step(step, output, now)

    def forget(self, sequence: Sequence) -> None:
        if self._drafting is not None:
            self._drafting.forget(sequence)

    def _may_come(self) -> bool:
        drafting = self._drafting
        return self._worker.info.drafts_itself or (drafting is not None and drafting.is_on)
