"""The engine's side of draft workers: one may be attached, with or without a worker beside it."""

from collections.abc import Callable

from taco_proto.config import SchedulerConfig
from taco_proto.drafts import DrafterInfo, DraftReply, DraftRequest
from taco_proto.steps import IntArray, PlannedDrafts, StepOutput, WorkerInfo
from taco_scheduler.admission import can_draft, check_drafter
from taco_scheduler.attached_worker import AttachedWorker
from taco_scheduler.batch import BoolArray
from taco_scheduler.counters import Counters
from taco_scheduler.draft_limits import DraftLimits
from taco_scheduler.drafting import Drafting
from taco_scheduler.in_flight import InFlightStep
from taco_scheduler.sequence import Sequence


class DraftDesk:
    """Without a draft worker, or one that fits the worker, everything here does nothing."""

    def __init__(
        self, config: SchedulerConfig, counters: Counters, num_requests: Callable[[], int]
    ) -> None:
        self._config = config
        self._counters = counters
        self._num_requests = num_requests
        self._drafter: DrafterInfo | None = None
        self._worker: AttachedWorker | None = None
        self._drafting: Drafting | None = None  # with both

    def attach(self, info: DrafterInfo) -> None:
        """A draft worker that knows no sequence yet is there. `check` tells whether it is used."""
        self._drafter = info
        self._start()

    def detach(self) -> None:
        """Decoding goes on without drafts."""
        self._drafter = self._drafting = None

    def check(self) -> None:
        """Raises InvalidWorkerError: the draft worker cannot draft for the worker."""
        if self._drafter is not None and self._worker is not None:
            check_drafter(self._drafter, self._worker.info)

    def request(self, now: float) -> DraftRequest | None:
        """What to ask the draft worker for before the next plan is made; None: nothing now."""
        return None if self._drafting is None else self._drafting.ask(now)

    def take(self, reply: DraftReply, now: float) -> None:
        if self._drafting is not None:
            self._drafting.take(reply, now)

    # -------------------------------------------------------- for the engine

    def set_worker(self, worker: AttachedWorker | None) -> None:
        self._worker = worker
        self._drafting = None
        self._start()

    def limits(self, info: WorkerInfo) -> DraftLimits:
        return DraftLimits(
            info.max_draft_tokens,
            self._config.speculative_max_model_len,
            self._config.speculative_disable_by_batch_size,
            self._num_requests,
            lambda: info.drafts_itself or (self._drafting is not None and self._drafting.is_on),
        )

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

    def _start(self) -> None:
        worker, drafter = self._worker, self._drafter
        if worker is None or drafter is None or not can_draft(drafter, worker.info):
            return
        self._drafting = Drafting(
            drafter,
            worker,
            self.limits(worker.info),
            self._config.num_speculative_tokens,
            self._counters,
        )
