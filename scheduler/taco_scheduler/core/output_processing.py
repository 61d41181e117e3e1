"""Output processing: commits the tokens of a step, ends sequences, and fills output buffers."""

import numpy as np

from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import FinishReason
from taco_proto.steps import IntArray, StepOutput
from taco_scheduler.admission.validation import length_limit
from taco_scheduler.core.beam_progress import BeamProgress
from taco_scheduler.core.preemption import Preemption
from taco_scheduler.core.request_registry import RequestRegistry
from taco_scheduler.core.stop import StopChecker
from taco_scheduler.queue.waiting_queue import WaitingQueue
from taco_scheduler.state.counters import Counters
from taco_scheduler.state.in_flight import InFlightStep
from taco_scheduler.state.output_tokens import OutputTokens
from taco_scheduler.state.sequence import Request, Sequence
from taco_scheduler.state.worker_state import WorkerState


class OutputCommitter:
    """Commits the outputs of one worker's steps, in their order.

    Attributes:
        beams: the beams among the worker's sequences.

    Args:
        preemption: queues a preempted sequence with its last output in flight.
        requests: frees ended sequences, charges tokens to tenants, and clears suspected requests.
    """

    def __init__(
        self,
        worker: WorkerState,
        waiting: WaitingQueue,
        stops: StopChecker,
        preemption: Preemption,
        requests: RequestRegistry,
        counters: Counters,
    ) -> None:
        self._worker = worker
        self._batch = worker.batch
        self._stops = stops
        self._preemption = preemption
        self._requests = requests
        self._fair_share = requests.fair_share
        self._suspected = requests.poison.suspected
        self._counters = counters
        self.beams = BeamProgress(worker, waiting, stops, requests)

    def commit(self, step: InFlightStep, output: StepOutput, now: float) -> None:
        """Commit an output that has been checked against its step."""
        if output.prompt_logprobs is not None:
            self._emit_prompt_logprobs(step, output)
        new = OutputTokens.of(output)
        owned = self._batch.slot_generation[new.slots] == step.sampled_generations
        if step.max_drafts.any():
            self._batch.drafts_in_flight[new.slots[owned]] -= step.max_drafts[owned]
        self._counters.speculation.count(output, step.max_drafts)
        if not owned.all():
            # The other rows are of sequences that ended or were preempted during the step.
            for row in np.flatnonzero(~owned).tolist():
                sequence = self._worker.preempted.get(int(step.sampled_generations[row]))
                if sequence is not None:
                    self._commit_preempted(sequence, new.take(np.array([row])), now)
            # Not `owned`: a request that failed just now has lost its slots.
            is_owned = self._batch.slot_generation[new.slots] == step.sampled_generations
            new = new.take(np.flatnonzero(is_owned))
        if self._batch.num_beams:
            new = self._commit_beams(new, now)
        if new.slots.size:
            self._commit_rows(new, now)

    def _commit_beams(self, new: OutputTokens, now: float) -> OutputTokens:
        """Commit the rows of running beams; returns the other rows."""
        is_beam = self._batch.is_beam[new.slots]
        for row in np.flatnonzero(is_beam).tolist():
            sequence = self._batch.sequences[int(new.slots[row])]
            if sequence is not None:  # else its request failed with another row
                self._commit_beam(sequence, new.take(np.array([row])), now)
        return new.take(np.flatnonzero(~is_beam)) if is_beam.any() else new

    def _commit_beam(self, sequence: Sequence, new: OutputTokens, now: float) -> None:
        request = sequence.request
        self._counters.generation_tokens += 1
        self._fair_share.charge_outputs(np.array([request.share.index]), np.array([1]))
        self._suspected.discard(request)
        if sequence.first_token_time is None:
            self._note_first_token(sequence, now)
        if (last := self.beams.take(sequence, new)) is not None:
            self._note_end(last, now)

    def _commit_rows(self, new: OutputTokens, now: float) -> None:
        batch = self._batch
        new, reasons = self._up_to_ends(new)
        slots = new.slots
        if new.tokens.size > slots.size:  # the plan counted one each
            batch.num_tokens[slots] += new.num_tokens - 1
            batch.num_computed[slots] += new.num_tokens - 1
        batch.append_tokens(slots, new.num_tokens, new.tokens)
        batch.num_committed[slots] += new.num_tokens
        if batch.no_token_yet[slots].any():
            self._note_first_tokens(slots, now)
        self._emit(new, reasons)
        self._counters.generation_tokens += new.tokens.size
        if self._fair_share.counts_outputs:
            self._fair_share.charge_outputs(batch.share[slots], new.num_tokens)
        if self._suspected:
            self._suspected.difference_update(batch.owner(s).request for s in slots.tolist())
        for row in reasons.nonzero()[0].tolist():
            sequence = batch.owner(int(slots[row]))
            self._note_end(sequence, now)
            self._requests.free(sequence)

    def _up_to_ends(self, new: OutputTokens) -> tuple[OutputTokens, IntArray]:
        """Cut each row behind the token that ends its sequence; drafts may go beyond it.

        Returns:
            The rows, and why each of them ends, as `FinishReason` values.
        """
        batch, num_tokens = self._batch, new.num_tokens
        if new.tokens.size == new.slots.size:
            lengths = batch.num_committed[new.slots] + 1
            return new, self._stops.finish_reasons(batch, new.slots, new.tokens, lengths)
        ends = np.cumsum(num_tokens)
        token_slots = np.repeat(new.slots, num_tokens)
        places = np.arange(new.tokens.size) - np.repeat(ends - num_tokens, num_tokens)
        lengths = batch.num_committed[token_slots] + places + 1
        reasons = self._stops.finish_reasons(batch, token_slots, new.tokens, lengths)
        # Drop the tokens behind the first one that ends their row.
        num_endings = np.concatenate([[0], np.cumsum(reasons != 0)])
        is_behind = num_endings[:-1] > np.repeat(num_endings[ends - num_tokens], num_tokens)
        if is_behind.any():
            new = new.without_tokens(is_behind)
            reasons = reasons[~is_behind]
        return new, reasons[np.cumsum(new.num_tokens) - 1]

    def _emit(self, new: OutputTokens, reasons: IntArray) -> None:
        """Add each row to the output buffer of its client.

        The rows are sorted by client and converted once for the whole step, and each client gets a
        slice. So the cost grows with rows plus clients, not with their product.
        """
        clients = self._batch.client[new.slots]
        bounds = [0, clients.size]
        if (clients != clients[0]).any():
            order = np.argsort(clients, kind="stable")
            new, reasons, clients = new.take(order), reasons[order], clients[order]
            changes = np.flatnonzero(clients[1:] != clients[:-1]) + 1
            bounds[1:1] = changes.tolist()
        columns = self._columns(new, reasons)
        token_ids = new.tokens.tolist()
        token_bounds = bounds
        if len(token_ids) > clients.size:
            token_ends = np.cumsum(new.num_tokens)
            token_bounds = [0, *token_ends[np.array(bounds[1:]) - 1].tolist()]
        parts = None if new.logprobs is None else new.logprobs.split(token_bounds)
        for part, slot in enumerate(new.slots[bounds[:-1]].tolist()):
            start, end = bounds[part], bounds[part + 1]
            self._batch.owner(slot).request.output_buffer.add_tokens(
                *(column[start:end] for column in columns),
                token_ids=token_ids[token_bounds[part] : token_bounds[part + 1]],
                logprobs=None if parts is None else parts[part],
            )

    def _columns(self, new: OutputTokens, reasons: IntArray) -> tuple[list[int], ...]:
        """Columns for clients, one entry a row, in the order of `OutputBuffer.add_tokens`."""
        batch, slots = self._batch, new.slots
        if reasons.any():
            last_tokens = new.tokens[np.cumsum(new.num_tokens) - 1]
            reason_list = reasons.tolist()
            stop_tokens = np.where(reasons == FinishReason.STOP, last_tokens, -1).tolist()
        else:
            reason_list, stop_tokens = [0] * len(slots), [-1] * len(slots)
        return (
            batch.handle[slots].tolist(),
            batch.index[slots].tolist(),
            new.num_tokens.tolist(),
            reason_list,
            stop_tokens,
            batch.num_cached[slots].tolist(),
        )

    def _commit_preempted(self, sequence: Sequence, new: OutputTokens, now: float) -> None:
        """Commit the tokens of a step that a preempted sequence was in."""
        request = sequence.request
        if request.search is not None:
            self._commit_beam(sequence, new, now)
            return
        limit = length_limit(request, self._worker.info)
        reason, count = FinishReason.RUNNING, 0
        for token in new.tokens.tolist():
            sequence.tokens.append(token)
            count += 1
            reason = self._stops.finish_reason(sequence, limit)
            if reason is not FinishReason.RUNNING:
                break
        token_ids = new.tokens[:count].tolist()
        request.output_buffer.add_tokens(
            [request.handle],
            [sequence.index],
            [count],
            [reason],
            [token_ids[-1] if reason is FinishReason.STOP else -1],
            [sequence.num_cached_tokens or 0],
            token_ids=token_ids,
            logprobs=None if new.logprobs is None else new.logprobs.split([0, count])[0],
        )
        self._counters.generation_tokens += count
        self._fair_share.charge_outputs(np.array([request.share.index]), np.array([count]))
        self._suspected.discard(request)
        if sequence.first_token_time is None:
            self._note_first_token(sequence, now)
        if reason is not FinishReason.RUNNING:
            self._note_end(sequence, now)
            self._requests.free(sequence)
        else:
            self._preemption.on_output(sequence)

    def _emit_prompt_logprobs(self, step: InFlightStep, output: StepOutput) -> None:
        assert output.prompt_logprobs is not None
        generations = dict(zip(step.slots.tolist(), step.generations.tolist(), strict=True))
        slots, positions = output.prompt_logprob_slots, output.prompt_logprob_positions
        # Rows of one slot and of consecutive positions are one run.
        is_next = (slots[1:] == slots[:-1]) & (positions[1:] == positions[:-1] + 1)
        bounds = [0, *(np.flatnonzero(~is_next) + 1).tolist(), slots.size]
        for run, rows in enumerate(output.prompt_logprobs.split(bounds)):
            slot, first = int(slots[bounds[run]]), int(positions[bounds[run]])
            sequence = self._worker.owner(slot, generations[slot])
            if sequence is not None:
                self._emit_prompt_rows(sequence.request, first, rows)

    def _emit_prompt_rows(self, request: Request, first: int, rows: LogprobColumns) -> None:
        """Emit rows of consecutive positions from `first`, except those emitted before.

        A sequence that was preempted in its prefill computes some positions again.
        """
        num_rows = rows.num_entries.size
        num_emitted = request.num_prompt_logprobs - first
        if 0 <= num_emitted < num_rows:
            (rows,) = rows.split([num_emitted, num_rows])
            positions = range(request.num_prompt_logprobs, first + num_rows)
            request.output_buffer.add_prompt_logprobs(request.handle, positions, rows)
            request.num_prompt_logprobs = first + num_rows

    # ------------------------------------------------------------------- times

    def _note_first_tokens(self, slots: IntArray, now: float) -> None:
        for slot in slots[self._batch.no_token_yet[slots]].tolist():
            self._batch.no_token_yet[slot] = False
            self._note_first_token(self._batch.owner(slot), now)

    def _note_first_token(self, sequence: Sequence, now: float) -> None:
        assert sequence.first_run_time is not None
        sequence.first_token_time = now
        self._counters.prefill_seconds.observe(now - sequence.first_run_time)

    def _note_end(self, sequence: Sequence, now: float) -> None:
        assert sequence.first_run_time is not None
        assert sequence.first_token_time is not None
        self._counters.decode_seconds.observe(now - sequence.first_token_time)
        self._counters.inference_seconds.observe(now - sequence.first_run_time)
