"""Turns the output of a step into committed tokens, ended sequences and news for clients."""

from collections.abc import Callable

import numpy as np

from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import FinishReason
from taco_proto.steps import IntArray, StepOutput
from taco_scheduler.admission.fair_share import FairShare
from taco_scheduler.core.batch import Batch
from taco_scheduler.core.in_flight import InFlightStep
from taco_scheduler.core.sequence import Request, Sequence
from taco_scheduler.core.step_tokens import News, news_of
from taco_scheduler.core.stop import StopChecker
from taco_scheduler.metrics.counters import Counters


class Committer:
    """Commits steps, in their order, for one worker.

    Args:
        landing: preempted sequences that wait for the outputs of steps in flight, by tenure.
        suspects: requests that were in a step that failed; a new token clears them.
        fair_share: is told of each token that a tenant gets.
        retire: frees what an ended sequence holds.
        requeue: queues a sequence that has landed.
        limit_of: length at which a request's sequences end.
    """

    def __init__(
        self,
        batch: Batch,
        stops: StopChecker,
        landing: dict[int, Sequence],
        suspects: set[Request],
        counters: Counters,
        fair_share: FairShare,
        *,
        retire: Callable[[Sequence], None],
        requeue: Callable[[Sequence], None],
        limit_of: Callable[[Request], int],
    ) -> None:
        self._batch = batch
        self._stops = stops
        self._landing = landing
        self._suspects = suspects
        self._counters = counters
        self._fair_share = fair_share
        self._retire = retire
        self._requeue = requeue
        self._limit_of = limit_of

    def commit(self, step: InFlightStep, output: StepOutput, now: float) -> None:
        """`output` has been checked against `step`."""
        if output.prompt_logprobs is not None:
            self._emit_prompt_logprobs(step, output)
        news = news_of(output)
        owned = self._batch.tenure[news.slots] == step.sampled_tenures
        if step.max_drafts.any():
            self._batch.drafts_in_flight[news.slots[owned]] -= step.max_drafts[owned]
        self._counters.speculation.count(output, step.max_drafts)
        if not owned.all():
            # Sequences that ended or were preempted while the step ran.
            for row in np.flatnonzero(~owned).tolist():
                sequence = self._landing.get(int(step.sampled_tenures[row]))
                if sequence is not None:
                    self._land(sequence, news.take(np.array([row])), now)
            news = news.take(np.flatnonzero(owned))
        if news.slots.size:
            self._commit_rows(news, now)

    def _commit_rows(self, news: News, now: float) -> None:
        batch = self._batch
        news, reasons = self._up_to_ends(news)
        slots = news.slots
        if news.tokens.size > slots.size:  # beyond the one that was counted when it was planned
            batch.num_tokens[slots] += news.num_tokens - 1
            batch.num_computed[slots] += news.num_tokens - 1
        batch.append_tokens(slots, news.num_tokens, news.tokens)
        batch.num_committed[slots] += news.num_tokens
        if batch.no_token_yet[slots].any():
            self._note_first_tokens(slots, now)
        self._emit(news, reasons)
        self._counters.generation_tokens += news.tokens.size
        if self._fair_share.counts_outputs:
            self._fair_share.charge_outputs(batch.share[slots], news.num_tokens)
        if self._suspects:
            self._suspects.difference_update(batch.owner(s).request for s in slots.tolist())
        for row in reasons.nonzero()[0].tolist():
            sequence = batch.owner(int(slots[row]))
            self._note_end(sequence, now)
            self._retire(sequence)

    def _up_to_ends(self, news: News) -> tuple[News, IntArray]:
        """What counts of the news, and why each row ends: a sequence has no token behind the one
        that ends it, drafted and accepted or not.
        """
        batch, num_tokens = self._batch, news.num_tokens
        if news.tokens.size == news.slots.size:
            lengths = batch.num_committed[news.slots] + 1
            return news, self._stops.finish_reasons(batch, news.slots, news.tokens, lengths)
        ends = np.cumsum(num_tokens)
        token_slots = np.repeat(news.slots, num_tokens)
        places = np.arange(news.tokens.size) - np.repeat(ends - num_tokens, num_tokens)
        lengths = batch.num_committed[token_slots] + places + 1
        reasons = self._stops.finish_reasons(batch, token_slots, news.tokens, lengths)
        # Tokens that stand behind one that ends their row.
        num_endings = np.concatenate([[0], np.cumsum(reasons != 0)])
        is_behind = num_endings[:-1] > np.repeat(num_endings[ends - num_tokens], num_tokens)
        if is_behind.any():
            news = news.without_tokens(is_behind)
            reasons = reasons[~is_behind]
        return news, reasons[np.cumsum(news.num_tokens) - 1]

    def _emit(self, news: News, reasons: IntArray) -> None:
        """One row a slot into the output_buffer of its client.

        The rows are sorted by client and converted once for the whole step; each client then gets
        slices. So the cost grows with the rows and with the clients, not with their product.
        """
        clients = self._batch.client[news.slots]
        bounds = [0, clients.size]
        if (clients != clients[0]).any():
            order = np.argsort(clients, kind="stable")
            news, reasons, clients = news.take(order), reasons[order], clients[order]
            changes = np.flatnonzero(clients[1:] != clients[:-1]) + 1
            bounds[1:1] = changes.tolist()
        columns = self._columns(news, reasons)
        token_ids = news.tokens.tolist()
        token_bounds = bounds
        if len(token_ids) > clients.size:
            token_ends = np.cumsum(news.num_tokens)
            token_bounds = [0, *token_ends[np.array(bounds[1:]) - 1].tolist()]
        parts = None if news.logprobs is None else news.logprobs.split(token_bounds)
        for part, slot in enumerate(news.slots[bounds[:-1]].tolist()):
            start, end = bounds[part], bounds[part + 1]
            self._batch.owner(slot).request.output_buffer.add_tokens(
                *(column[start:end] for column in columns),
                token_ids=token_ids[token_bounds[part] : token_bounds[part + 1]],
                logprobs=None if parts is None else parts[part],
            )

    def _columns(self, news: News, reasons: IntArray) -> tuple[list[int], ...]:
        """Columns for clients, one entry a row, in the order of `OutputBuffer.add_tokens`."""
        batch, slots = self._batch, news.slots
        if reasons.any():
            last_tokens = news.tokens[np.cumsum(news.num_tokens) - 1]
            reason_list = reasons.tolist()
            stop_tokens = np.where(reasons == FinishReason.STOP, last_tokens, -1).tolist()
        else:
            reason_list, stop_tokens = [0] * len(slots), [-1] * len(slots)
        return (
            batch.handle[slots].tolist(),
            batch.index[slots].tolist(),
            news.num_tokens.tolist(),
            reason_list,
            stop_tokens,
            batch.num_cached[slots].tolist(),
        )

    def _land(self, sequence: Sequence, news: News, now: float) -> None:
        """A preempted sequence gets the tokens of a step that it was in."""
        request = sequence.request
        limit = self._limit_of(request)
        reason, count = FinishReason.RUNNING, 0
        for token in news.tokens.tolist():
            sequence.tokens.append(token)
            count += 1
            reason = self._stops.finish_reason(sequence, limit)
            if reason is not FinishReason.RUNNING:
                break
        sequence.num_landing -= 1
        token_ids = news.tokens[:count].tolist()
        request.output_buffer.add_tokens(
            [request.handle],
            [sequence.index],
            [count],
            [reason],
            [token_ids[-1] if reason is FinishReason.STOP else -1],
            [sequence.num_cached_tokens or 0],
            token_ids=token_ids,
            logprobs=None if news.logprobs is None else news.logprobs.split([0, count])[0],
        )
        self._counters.generation_tokens += count
        self._fair_share.charge_outputs(np.array([request.share.index]), np.array([count]))
        self._suspects.discard(request)
        if sequence.first_token_time is None:
            self._note_first_token(sequence, now)
        if reason is not FinishReason.RUNNING:
            self._note_end(sequence, now)
            self._retire(sequence)
        elif sequence.num_landing == 0:
            del self._landing[sequence.tenure]
            self._requeue(sequence)

    def _emit_prompt_logprobs(self, step: InFlightStep, output: StepOutput) -> None:
        assert output.prompt_logprobs is not None
        tenures = dict(zip(step.slots.tolist(), step.tenures.tolist(), strict=True))
        slots, positions = output.prompt_logprob_slots, output.prompt_logprob_positions
        # Rows of one slot and of consecutive positions are one run.
        is_next = (slots[1:] == slots[:-1]) & (positions[1:] == positions[:-1] + 1)
        bounds = [0, *(np.flatnonzero(~is_next) + 1).tolist(), slots.size]
        for run, rows in enumerate(output.prompt_logprobs.split(bounds)):
            slot, first = int(slots[bounds[run]]), int(positions[bounds[run]])
            sequence = self._batch.sequences[slot]
            if sequence is None or sequence.tenure != tenures[slot]:
                sequence = self._landing.get(tenures[slot])
            if sequence is not None:
                self._emit_prompt_rows(sequence.request, first, rows)

    def _emit_prompt_rows(self, request: Request, first: int, rows: LogprobColumns) -> None:
        """Rows of consecutive positions from `first`, without those that were emitted before: a
        sequence that was preempted in its prefill computes some positions again.
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
