"""Prompt progress: caches the prompt blocks that a planned step computes, and ends prefills."""

from taco_scheduler.core.step_rows import StepRows
from taco_scheduler.queue.waiting_queue import WaitingQueue
from taco_scheduler.state.counters import Counters
from taco_scheduler.state.sequence import Request, Sequence, Status
from taco_scheduler.state.worker_state import WorkerState
from taco_scheduler.token_ids import TOKEN_BYTES


class PromptProgress:
    """Updates one worker's prefix cache, queue and counters after each plan."""

    def __init__(self, worker: WorkerState, waiting: WaitingQueue, counters: Counters) -> None:
        self._worker = worker
        self._waiting = waiting
        self._counters = counters

    def note_planned(self, rows: StepRows, step_id: int, now: float) -> None:
        """Publish the prompt blocks that a step computes: the next step can match them.

        The sequence that completes a prompt pins the request's prefixes, and queues the sequences
        that wait for the prompt.

        Args:
            rows: of the step, whose plan is made.
            now: time of the plan.
        """
        for sequence in rows.joined:
            if sequence.first_run_time is None:
                self._note_first_run(sequence, now)
        batch, blocks = self._worker.batch, self._worker.blocks
        for slot in rows.chunk_slots:
            sequence = batch.owner(slot)
            num_computed = int(batch.num_computed[slot])
            assert sequence.table is not None
            blocks.publish(sequence.table, sequence.pack(), num_computed, step_id)
            if num_computed >= sequence.request.num_prompt_tokens:
                self._queue_siblings(sequence.request)
                if sequence.request.search is None or not sequence.num_generated:
                    self._pin_prompt(sequence, now)

    def _note_first_run(self, sequence: Sequence, now: float) -> None:
        sequence.first_run_time = now
        request, queued = sequence.request, now - sequence.request.arrival_time
        self._counters.queue_seconds.observe(queued)
        if sequence.index == 0:
            request.output_buffer.add_start(request.handle, queued)
        self._counters.speculation.num_sequences += 1

    def _queue_siblings(self, request: Request) -> None:
        for sequence in request.sequences:
            if sequence.status is Status.AWAITING_PREFILL:
                sequence.take_prompt()
                self._waiting.push(sequence, 1)  # the rest of its prompt is in the cache

    def _pin_prompt(self, sequence: Sequence, now: float) -> None:
        request = sequence.request
        for pin in request.pins:
            tokens = memoryview(sequence.pack())[: pin.num_tokens * TOKEN_BYTES]
            is_pinned = self._worker.blocks.pin_prefix(
                tokens, request.namespace, now + pin.seconds, request.tenant.name
            )
            self._counters.num_pins += is_pinned
            self._counters.num_rejected_pins += not is_pinned
