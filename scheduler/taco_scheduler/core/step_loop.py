"""The step loop of one worker: plans steps ahead, and commits their outputs in order."""

import logging
from collections.abc import Iterator

from taco_proto.config import SchedulerConfig
from taco_proto.kv_tiers import StoreReport
from taco_proto.steps import StepOutput, StepPlan
from taco_scheduler.admission.validation import length_limit
from taco_scheduler.core.disk_prefetch import DiskPrefetch
from taco_scheduler.core.output_processing import OutputCommitter
from taco_scheduler.core.plan_message import make_plan
from taco_scheduler.core.preemption import Preemption
from taco_scheduler.core.prompt_chunks import PromptChunks
from taco_scheduler.core.prompt_progress import PromptProgress
from taco_scheduler.core.request_registry import RequestRegistry
from taco_scheduler.core.scheduling_policy import Policy
from taco_scheduler.core.slot_admission import SlotAdmission
from taco_scheduler.core.state_saves import StateSaves
from taco_scheduler.core.step_rows import NOTHING_SAVED, StepRows
from taco_scheduler.core.stop import StopChecker
from taco_scheduler.faults.row_errors import end_failed_sequences
from taco_scheduler.faults.worker_loss import StallDetector
from taco_scheduler.kv.block_table import BlockTable
from taco_scheduler.kv.recurrent_block_manager import RecurrentBlockManager
from taco_scheduler.queue.gate import Gate
from taco_scheduler.queue.prompt_delay import PromptDelay
from taco_scheduler.queue.waiting_queue import WaitingQueue
from taco_scheduler.speculation.speculation import Speculation
from taco_scheduler.state.counters import Counters
from taco_scheduler.state.in_flight import (
    InFlightStep,
    InvalidOutputError,
    StaleOutputError,
    check_output,
)
from taco_scheduler.state.sequence import Sequence, Status
from taco_scheduler.state.worker_state import WorkerState

logger = logging.getLogger("taco.scheduler")


class StepLoop:
    """Plans steps for one worker and commits their outputs, in the order of the plans.

    Attributes:
        stops: tells which token ends a sequence.
    """

    def __init__(
        self,
        name: str,
        worker: WorkerState,
        waiting: WaitingQueue,
        speculation: Speculation,
        config: SchedulerConfig,
        requests: RequestRegistry,
        counters: Counters,
        epochs: Iterator[int],
        step_ids: Iterator[int],
        *,
        waiting_gates: tuple[Gate, ...] = (),
        sampling_gates: tuple[Gate, ...] = (),
        detects_stalls: bool,
    ) -> None:
        """
        Args:
            waiting_gates, sampling_gates: see `SlotAdmission`.
            name: of the worker, for the log.
            epochs, step_ids: rising numbers that all workers share. A worker that comes back gets
                new ones, so that outputs of its earlier attachment are recognized.
            detects_stalls: the worker counts as lost if a step takes far too long.
        """
        info = worker.info
        self.stops = StopChecker(info.vocab_size, info.eos_token_ids)
        self._name = name
        self._worker = worker
        self._waiting = waiting
        self._speculation = speculation
        self._config = config
        self._requests = requests
        self._counters = counters
        self._epochs = epochs
        self._step_ids = step_ids
        self._epoch = self._first_epoch = next(epochs)
        self._max_in_flight = 2 if config.run_ahead else 1
        self._disk_prefetch = DiskPrefetch(worker.blocks)
        self._prompt_delay = PromptDelay(config.prompt_delay_factor, worker.batch)
        self._prompt_progress = PromptProgress(worker, waiting, counters)
        self._state_saves: StateSaves | None = None
        if isinstance(worker.blocks, RecurrentBlockManager):
            self._state_saves = StateSaves(worker.batch, worker.blocks)
        self._stall_detector = StallDetector(config.step_timeout, is_enabled=detects_stalls)
        self._last_output_at = 0.0
        preemption = Preemption(worker, waiting, counters, swaps=config.swaps_preempted)
        max_num_batched_tokens = worker.limits.max_num_batched_tokens
        chunks = PromptChunks(
            worker.batch,
            worker.blocks,
            max_num_batched_tokens,
            config.long_prefill_token_threshold,
        )
        admission = SlotAdmission(
            worker.batch,
            worker.blocks,
            waiting,
            requests.poison.suspected,
            chunks,
            waiting_gates=(*waiting_gates, requests.wide_logprobs, self._disk_prefetch),
            sampling_gates=sampling_gates,
            delays_prompts=self._prompt_delay.must_wait,
            admit=self._admit,
        )
        self._policy = Policy(
            worker.batch,
            worker.blocks,
            waiting,
            max_num_batched_tokens,
            speculation.limits,
            preemption,
            chunks,
            admission,
            sampling_gates,
        )
        self._committer = OutputCommitter(
            worker, waiting, self.stops, preemption, requests, counters
        )

    # ------------------------------------------------------------------- state

    @property
    def is_full(self) -> bool:
        """Whether as many steps are in flight as the worker may have."""
        return len(self._worker.in_flight) >= self._max_in_flight

    @property
    def is_empty(self) -> bool:
        """Whether no sequence waits or runs on the worker."""
        worker = self._worker
        return not (worker.batch.num_running or self._waiting.num_sequences or worker.preempted)

    def stall_deadline(self) -> float | None:
        """When the worker counts as lost unless it answers; None: it owes no answer."""
        steps = self._worker.in_flight.steps
        return self._stall_detector.deadline(steps[0], self._last_output_at) if steps else None

    def disk_deadline(self) -> float | None:
        """When a waiting sequence stops waiting for the disk tier, if a step may be planned then;
        None: never.
        """
        return None if self.is_full else self._disk_prefetch.deadline()

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept of a sequence that ended or left the worker."""
        self._disk_prefetch.forget(sequence)

    # ------------------------------------------------------------------- plans

    def plan(self, now: float, *, is_draining: bool) -> StepPlan | None:
        """The next step, to be sent to the worker at once; None if there is nothing to run now."""
        worker = self._worker
        self._disk_prefetch.begin(now)
        self._prompt_delay.begin(now)
        if self.is_full:
            return None
        if self.is_empty:
            return self._plan_copies(now, is_draining=is_draining)
        worker.blocks.expire(now)
        client = self._speculation.client
        rows = self._policy.fill_step(client.slots_awaiting_drafts())
        if worker.batch.num_beams and self._committer.beams.release_held() and not rows:
            rows = self._policy.fill_step(client.slots_awaiting_drafts())
        if not rows:
            return None
        step_id = next(self._step_ids)
        plan, step = make_plan(
            worker.batch,
            rows,
            self._epoch,
            step_id,
            now=now,
            runs_alone=not worker.in_flight.steps,
            is_announced=self._runs_suspected_request(rows),
            drafts=client.planned(rows.decode_slots, rows.max_drafts),
            copies=worker.blocks.take_copies(step_id),
            saved=self._state_saves.plan(rows, step_id) if self._state_saves else NOTHING_SAVED,
            needs_history=worker.info.needs_history,
        )
        worker.in_flight.steps.append(step)
        self._prompt_progress.note_planned(rows, step_id, now)
        self._counters.num_steps += 1
        self._counters.iteration_tokens.observe(rows.num_tokens)
        return plan

    def _plan_copies(self, now: float, *, is_draining: bool) -> StepPlan | None:
        """A step without rows, for the copies to the host that precede writes to disk."""
        worker = self._worker
        if is_draining:
            worker.blocks.flush()
        # One step at a time: the next request should not wait for more.
        if worker.in_flight.steps or not worker.blocks.disk.has_unsaved:
            return None
        step_id = next(self._step_ids)
        copies = worker.blocks.take_copies(step_id)
        if copies is None:
            return None
        plan, step = make_plan(
            worker.batch,
            StepRows(),
            self._epoch,
            step_id,
            now=now,
            runs_alone=not worker.in_flight.steps,
            copies=copies,
        )
        worker.in_flight.steps.append(step)
        return plan

    def _admit(self, sequence: Sequence, table: BlockTable) -> None:
        """Give a waiting sequence a slot, and count what the prefix cache held of it."""
        request, info = sequence.request, self._worker.info
        self._disk_prefetch.forget(sequence)
        self._requests.note_running(request)
        self._requests.wide_logprobs.note_running(request)
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = min(table.num_cached_tokens, request.num_prompt_tokens)
            self._counters.prompt_tokens += request.num_prompt_tokens
            self._requests.fair_share.charge_prompt(
                request.share, request.num_prompt_tokens, sequence.num_cached_tokens
            )
        if self._worker.blocks.enable_prefix_caching and not sequence.computes_prompt_logprobs:
            self._counters.prefix_cache_queries += len(sequence.tokens)
            self._counters.prefix_cache_hits += table.num_cached_tokens
        if self._state_saves is not None:
            self._state_saves.begin(sequence, table)
        if request.search is not None:
            num_end_tokens = self.stops.num_end_tokens(request)
            request.search.num_candidates = request.search.width + num_end_tokens
        limit = length_limit(request, info)
        self._worker.batch.join(sequence, table, limit, info.block_size)

    def _runs_suspected_request(self, rows: StepRows) -> bool:
        suspected = self._requests.poison.suspected
        if not suspected:
            return False
        slots = (*rows.decode_slots.tolist(), *rows.chunk_slots)
        return any(self._worker.batch.owner(slot).request in suspected for slot in slots)

    # ----------------------------------------------------------------- outputs

    def commit(self, output: StepOutput, now: float) -> None:
        """Commit the output of the oldest step in flight.

        Raises:
            InvalidOutputError: it does not answer that step; nothing has changed.
            StaleOutputError: it belongs to an earlier attachment of the worker.
        """
        worker = self._worker
        if output.epoch < self._epoch:
            if output.epoch < self._first_epoch:
                raise StaleOutputError(f"epoch {output.epoch} was over before this worker came")
            return
        if output.epoch > self._epoch:
            raise InvalidOutputError(f"epoch {output.epoch} has not begun")
        step = worker.in_flight.oldest(output.step_id)
        if output.error:
            self._fail_step(step, output.error)
            return
        check_output(step, output, worker.info.vocab_size)
        worker.in_flight.steps.popleft()
        worker.blocks.confirm(step.step_id)
        seconds = now - max(step.planned_at, self._last_output_at)
        self._stall_detector.note_step(seconds)
        self._last_output_at = now
        if not step.only_decodes:
            self._prompt_delay.note_prompts(seconds)
            self._disk_prefetch.estimate.note_step(int(step.num_tokens.sum()), seconds)
        if output.row_errors:
            end_failed_sequences(
                step, output.row_errors, worker, self._counters, self._requests.fail
            )
        self._speculation.note_step(step, output, now)
        self._committer.commit(step, output, now)

    def note_step_begun(self, epoch: int, step_id: int) -> None:
        """Record that the worker begins an announced step: see `StepPlan.is_announced`."""
        if epoch == self._epoch:
            self._worker.in_flight.last_begun = step_id

    def take_store_report(self, report: StoreReport) -> None:
        """Take a report of the worker's disk tier."""
        self._disk_prefetch.estimate.note_read(len(report.read), report.read_seconds)
        self._worker.blocks.disk.take(report)

    def _fail_step(self, step: InFlightStep, error: str) -> None:
        """Start a new epoch: its first plan makes the worker drop its batch.

        All sequences of the worker are queued again.
        """
        worker = self._worker
        logger.error("step %d failed on %s: %s", step.step_id, self._name, error)
        self._counters.num_failed_steps += 1
        requests = {sequence.request for sequence in worker.sequences_in(step)}
        worker.blocks.withdraw()
        for sequence in worker.release_all():
            if sequence.candidates is None:
                self._waiting.push(sequence)
            else:
                sequence.status = Status.HELD
        self._epoch = next(self._epochs)
        self._requests.poison.on_step_failed(requests)
