"""One attached worker as the engine sees it: its queue, its steps, its draft worker."""

import logging
from collections.abc import Iterator

from taco_proto.config import SchedulerConfig
from taco_proto.kv_tiers import StoreReport
from taco_proto.registry import DECODE_TOKENS
from taco_proto.steps import StepOutput, StepPlan, WorkerInfo
from taco_scheduler.admission.validation import length_limit
from taco_scheduler.core.disk_prefetch import DiskPrefetch
from taco_scheduler.core.output_processing import OutputCommitter
from taco_scheduler.core.pending_prefixes import PendingPrefixes
from taco_scheduler.core.plan_message import make_plan
from taco_scheduler.core.policy import Policy
from taco_scheduler.core.prompt_delay import PromptDelay
from taco_scheduler.core.prompt_progress import PromptProgress
from taco_scheduler.core.request_registry import RequestRegistry
from taco_scheduler.core.step_rows import StepRows
from taco_scheduler.core.waiting_queue import WaitingQueue
from taco_scheduler.faults.row_errors import end_failed_sequences
from taco_scheduler.kv.block_table import BlockTable
from taco_scheduler.speculation.speculation import Speculation
from taco_scheduler.state.counters import Counters
from taco_scheduler.state.in_flight import (
    InFlightStep,
    InvalidOutputError,
    StaleOutputError,
    check_output,
)
from taco_scheduler.state.sequence import Request, Sequence, Status
from taco_scheduler.state.worker_state import WorkerState

# A step in flight may take so many times as long as the longest one that was measured.
STALL_FACTOR = 10.0

logger = logging.getLogger("taco.scheduler")


class Replica:
    """Plans steps for one worker and takes their outputs, in the order of the plans.

    Attributes:
        name: of the worker; no other one that is attached has it.
        license: whether the worker may take new requests.
        drain_deadline: when it has to be done, if it takes no new requests any more.
    """

    def __init__(
        self,
        info: WorkerInfo,
        name: str,
        config: SchedulerConfig,
        requests: RequestRegistry,
        counters: Counters,
        epochs: Iterator[int],
        step_ids: Iterator[int],
        *,
        is_watched: bool,
    ) -> None:
        """`epochs` and `step_ids` rise for all replicas together: no two lives of a worker share
        one, so that what is left of an earlier life can be told. `is_watched`: it may stall.
        """
        self.name = name
        self.license = info.license
        self.drain_deadline: float | None = None
        self.worker = WorkerState(info, config)
        self.waiting = WaitingQueue(requests.fair_share)
        self.drafts = Speculation(self.worker, config, counters, requests.__len__)
        self.disk_prefetch = DiskPrefetch(self.worker.blocks)
        self._delay = PromptDelay(config.prompt_delay_factor, self.worker.batch)
        self._epochs = epochs
        self._step_ids = step_ids
        self._epoch = self._first_epoch = next(epochs)
        self._config = config
        self._requests = requests
        self._counters = counters
        self._max_in_flight = 2 if config.run_ahead else 1
        self._prompts = PromptProgress(self.worker, self.waiting, counters)
        self._prefixes = PendingPrefixes(self.worker.blocks.block_bytes, info.block_size)
        self._last_output_at = 0.0
        self._longest_step = 0.0
        self._is_watched = is_watched
        self._policy = Policy(
            self.worker.batch,
            self.worker.blocks,
            self.waiting,
            requests.suspected_requests,
            self.worker.max_num_batched_tokens,
            config.long_prefill_token_threshold,
            self.drafts.limits,
            holds=self.disk_prefetch.holds,
            delays=self._delay.holds,
            admit=self._admit,
            preempt=self._preempt,
        )
        self._committer = OutputCommitter(
            self.worker.batch,
            self.worker.stops,
            self.worker.preempted,
            requests.suspected_requests,
            counters,
            requests.fair_share,
            free=requests.free,
            requeue=self.waiting.push,
            limit_of=lambda request: length_limit(request, info),
        )

    # ------------------------------------------------------------------- state

    @property
    def info(self) -> WorkerInfo:
        return self.worker.info

    @property
    def num_running(self) -> int:
        return self.worker.batch.num_running

    @property
    def kv_usage(self) -> float:
        return self.worker.blocks.usage

    @property
    def num_pinned_blocks(self) -> int:
        return self.worker.blocks.num_pinned_blocks

    @property
    def is_draining(self) -> bool:
        return self.drain_deadline is not None

    @property
    def accepts_requests(self) -> bool:
        """New ones: those that have begun may still come."""
        return self.license.is_valid and not self.is_draining

    def is_done(self, now: float) -> bool:
        """It leaves, and may go: nobody waits or runs here any more and what belongs on disk is
        there, or the time is up.
        """
        if self.drain_deadline is None:
            return False
        is_saved = self._is_empty and self.worker.blocks.is_flushed
        return is_saved or now >= self.drain_deadline

    @property
    def _is_empty(self) -> bool:
        return not (self.num_running or self.waiting.num_sequences or self.worker.preempted)

    @property
    def has_spare_capacity(self) -> bool:
        """It could begin with more than waits here."""
        has_room = self.worker.batch.num_free_slots > 0 and self.accepts_requests
        return has_room and not self.waiting.num_sequences and not self._is_full

    @property
    def can_plan(self) -> bool:
        """There may be a step to plan: not as many are in flight as may be."""
        return not self._is_full

    @property
    def can_act(self) -> bool:
        """There may be a step to plan or something for its disk tier to do."""
        return self.can_plan or self.worker.blocks.has_disk_tier

    @property
    def _is_full(self) -> bool:
        return len(self.worker.in_flight) >= self._max_in_flight

    def stall_deadline(self) -> float | None:
        """When the oldest step in flight has taken far longer than any before; None: never."""
        steps = self.worker.in_flight.steps
        if not steps or not self._is_watched:
            return None
        patience = max(self._config.step_timeout, STALL_FACTOR * self._longest_step)
        return max(steps[0].planned_at, self._last_output_at) + patience

    # ----------------------------------------------------------------- routing

    @property
    def load(self) -> int:
        """Estimated work, in prompt tokens."""
        batch = self.worker.batch
        missing = (batch.num_prefill - batch.num_computed)[batch.limit > 0]
        running = int(missing.clip(0).sum()) + DECODE_TOKENS * batch.num_running
        return running + self.queued_load

    @property
    def queued_load(self) -> int:
        """The part of it that waits."""
        return self.waiting.num_tokens + DECODE_TOKENS * self.waiting.num_sequences

    def num_missing_tokens(self, sequence: Sequence) -> int:
        """Tokens of a sequence that would be computed here: those that neither the prefix cache
        holds nor another sequence of this replica is about to bring there.
        """
        num_tokens = len(sequence.tokens)
        blocks = self.worker.blocks
        if sequence.computes_prompt_logprobs or not blocks.enable_prefix_caching:
            return num_tokens
        num_cached = blocks.num_cached_tokens(sequence.pack(), sequence.request.namespace)
        return num_tokens - max(num_cached, self._prefixes.num_common_tokens(sequence))

    def take(self, request: Request, *, is_choice: bool = True) -> None:
        """Queues a request that is nowhere; `is_choice`: it could have gone elsewhere."""
        request.replica = self
        request.accepted = True
        for sequence in request.unfinished:
            if sequence.status is Status.WAITING:
                num_missing = self.num_missing_tokens(sequence) if is_choice else None
                self.waiting.push(sequence, num_missing)
                if is_choice:
                    self._prefixes.add(sequence)

    def queue(self, sequence: Sequence) -> None:
        """Lets a sequence of a request that is here wait."""
        self.waiting.push(sequence)

    def give_up(self, requests: set[Request]) -> None:
        """Takes requests that do not run off the queue: they are nowhere afterwards."""
        self.waiting.remove(requests)
        for request in requests:
            for sequence in request.unfinished:
                self._forget(sequence)
            request.replica = None

    def release(self, sequence: Sequence) -> None:
        """Frees what a sequence of this replica holds; its outputs in flight find no owner."""
        match sequence.status:
            case Status.RUNNING:
                self.worker.release(sequence)
            case Status.PREEMPTED:
                del self.worker.preempted[sequence.slot_generation]
            case Status.WAITING:
                self.waiting.forget(sequence)
        self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        self.drafts.forget(sequence)
        self.disk_prefetch.forget(sequence)
        self._prefixes.remove(sequence)

    # ------------------------------------------------------------------- steps

    def plan(self, now: float) -> StepPlan | None:
        """The next step, to be sent to the worker at once; None if there is nothing to run now."""
        worker = self.worker
        self.disk_prefetch.now = now
        self._delay.begin(now)
        if self._is_full:
            return None
        if self._is_empty:
            return self._plan_copies(now)
        worker.blocks.expire(now)
        rows = self._policy.fill_step(self.drafts.held())
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
            is_announced=self._runs_a_suspect(rows),
            drafts=self.drafts.planned(rows.decode_slots, rows.max_drafts),
            copies=worker.blocks.take_copies(step_id),
            needs_history=self.info.needs_history,
        )
        worker.in_flight.steps.append(step)
        self._prompts.note_planned(rows, step_id, now)
        self._counters.num_steps += 1
        self._counters.iteration_tokens.observe(rows.num_tokens)
        return plan

    def _plan_copies(self, now: float) -> StepPlan | None:
        """Nobody runs: a step for those copies alone that saving to disk needs."""
        worker = self.worker
        if self.is_draining:
            worker.blocks.flush()
        # One at a time: whoever comes next should not wait for more.
        if worker.in_flight.steps or not worker.blocks.has_unsaved:
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

    def commit(self, output: StepOutput, now: float) -> None:
        """Takes the output of the oldest step in flight.

        Raises:
            InvalidOutputError: it does not answer that step; nothing has changed.
            StaleOutputError: it belongs to an earlier life of the worker.
        """
        worker = self.worker
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
        self._longest_step = max(self._longest_step, seconds)
        self._last_output_at = now
        if not step.only_decodes:
            self._delay.note_prompts(seconds)
            self.disk_prefetch.pace.note_step(int(step.num_tokens.sum()), seconds)
        if output.row_errors:
            end_failed_sequences(step, output.row_errors, worker, self._requests, self._counters)
        self.drafts.note_step(step, output, now)
        self._committer.commit(step, output, now)

    def take_store_report(self, report: StoreReport) -> None:
        """Takes what the worker's disk tier has done."""
        self.disk_prefetch.pace.note_read(len(report.read), report.read_seconds)
        self.worker.blocks.take_store_report(report)

    def note_begun(self, epoch: int, step_id: int) -> None:
        """The worker begins an announced step."""
        if epoch == self._epoch:
            self.worker.in_flight.last_begun = step_id

    def lose(self) -> tuple[set[Request], set[Request]]:
        """The worker is gone, with its KV: all its requests are nowhere. Returns those that a step
        was sent for, and those of them of which it is known that their step has begun.
        """
        present: set[Request] = set()
        has_begun: set[Request] = set()
        in_flight = self.worker.in_flight
        for step in in_flight.steps:
            requests = {sequence.request for sequence in self.worker.sequences_in(step)}
            present |= requests
            if step.step_id <= in_flight.last_begun:
                has_begun |= requests
        for sequence in self.worker.release_all():
            sequence.status = Status.WAITING
        return present, has_begun

    def _fail_step(self, step: InFlightStep, error: str) -> None:
        """Starts a new epoch: its first plan makes the worker drop its batch and go on."""
        worker = self.worker
        logger.error("step %d failed on %s: %s", step.step_id, self.name, error)
        self._counters.num_failed_steps += 1
        suspected_requests = {sequence.request for sequence in worker.sequences_in(step)}
        worker.blocks.withdraw()
        for sequence in worker.release_all():
            self.waiting.push(sequence)
        self._epoch = next(self._epochs)
        self._requests.strike(suspected_requests, is_crash=False, has_begun=suspected_requests)

    # ----------------------------------------------------------------- running

    def _admit(self, sequence: Sequence, table: BlockTable) -> None:
        request, info = sequence.request, self.info
        self.disk_prefetch.forget(sequence)
        self._requests.note_admitted(request)
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = min(table.num_cached_tokens, request.num_prompt_tokens)
            self._counters.prompt_tokens += request.num_prompt_tokens
            self._requests.fair_share.charge_prompt(
                request.share, request.num_prompt_tokens, sequence.num_cached_tokens
            )
        if self._config.enable_prefix_caching and not sequence.computes_prompt_logprobs:
            self._counters.prefix_cache_queries += len(sequence.tokens)
            self._counters.prefix_cache_hits += table.num_cached_tokens
        limit = length_limit(request, info)
        self.worker.batch.join(sequence, table, limit, info.block_size)

    def _runs_a_suspect(self, rows: StepRows) -> bool:
        suspected_requests = self._requests.suspected_requests
        if not suspected_requests:
            return False
        slots = (*rows.decode_slots.tolist(), *rows.chunk_slots)
        return any(self.worker.batch.owner(slot).request in suspected_requests for slot in slots)

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the queue, at once or when the outputs of the steps it is in have come."""
        worker = self.worker
        self._counters.num_preemptions += 1
        sequence.num_outputs_in_flight = worker.in_flight.num_sampling_steps(
            sequence.slot_generation
        )
        worker.release(sequence, swaps=self._config.swaps_preempted)
        if sequence.num_outputs_in_flight:
            sequence.status = Status.PREEMPTED
            worker.preempted[sequence.slot_generation] = sequence
        else:
            self.waiting.push(sequence)
