"""Beam progress: turns the outputs of one worker's beams into the beams of the next step.

Each beam is a sequence. It is held after each step, until the candidates of all beams of its
request have come. Then the search chooses the next beams:

- A beam that continues with the token that the worker sampled runs on.
- With another token, it joins the batch again, with its slot and its blocks. A recurrent worker
  has no snapshot of its state: there it waits in the queue, and computes the tokens behind its last
  snapshot again.
- A second continuation of a beam is a fork: a new sequence, which finds the full blocks in the
  prefix cache and computes the tail again.
- A beam without a continuation ends, and its slot and blocks are freed.
"""

from collections import defaultdict

import numpy as np

from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import FinishReason
from taco_scheduler.admission.validation import length_limit
from taco_scheduler.core.request_registry import RequestRegistry
from taco_scheduler.core.stop import StopChecker
from taco_scheduler.queue.waiting_queue import WaitingQueue
from taco_scheduler.state.beam_search import Beam, BeamSearch, Candidates, Hypothesis
from taco_scheduler.state.output_tokens import OutputTokens
from taco_scheduler.state.sequence import Request, Sequence, Status
from taco_scheduler.state.worker_state import WorkerState

_NO_CANDIDATES = "the worker gave no candidates for a beam: it must have the scheduler's version"


class BeamProgress:
    """The beams of one worker."""

    def __init__(
        self,
        worker: WorkerState,
        waiting: WaitingQueue,
        stops: StopChecker,
        requests: RequestRegistry,
    ) -> None:
        self._worker = worker
        self._waiting = waiting
        self._stops = stops
        self._requests = requests

    def take(self, sequence: Sequence, new: OutputTokens) -> Sequence | None:
        """Take the candidates of a beam, and advance its search if they are the last ones.

        Args:
            new: the one row of the beam.

        Returns:
            One of the request's sequences if its search has ended.
        """
        request = sequence.request
        if new.logprobs is None or new.logprobs.token_ids.size < 2:
            self._requests.fail(request, 500, _NO_CANDIDATES)
            return None
        sequence.candidates = Candidates.of(new.logprobs)
        if sequence.status is Status.PREEMPTED:
            del self._worker.preempted[sequence.slot_generation]
            sequence.num_outputs_in_flight = 0
            sequence.status = Status.HELD
        if any(s.candidates is None for s in request.sequences) or self._advance(request):
            return None
        return sequence

    def release_held(self) -> bool:
        """Release the slots of held beams that wait for a beam without a slot.

        Otherwise two requests may each hold the slots and blocks that the other one needs.

        Returns:
            Whether a slot was released.
        """
        released = False
        batch = self._worker.batch
        for slot in batch.is_held.nonzero()[0].tolist():
            sequence = batch.owner(slot)
            siblings = sequence.request.sequences
            if sequence.candidates is not None and any(
                sibling.status is Status.WAITING for sibling in siblings
            ):
                self._worker.release(sequence)
                sequence.status = Status.HELD
                released = True
        return released

    def _advance(self, request: Request) -> bool:
        """Choose the next beams; False: the search is over, and the request has ended."""
        search = _search(request)
        parents = dict(zip(search.beams, request.sequences, strict=True))
        candidates = [_candidates(sequence) for sequence in request.sequences]
        max_tokens = length_limit(request, self._worker.info) - request.num_prompt_tokens

        def is_end(token: int) -> bool:
            return self._stops.ends(request, token)

        if not search.advance(candidates, is_end, max_tokens):
            self._finish(request, search)
            return False
        self._continue(request, search, parents)
        return True

    # ------------------------------------------------------------------- beams

    def _continue(
        self, request: Request, search: BeamSearch, parents: dict[Beam, Sequence]
    ) -> None:
        """Give each beam a sequence: the one of its parent, or a fork of it."""
        children: dict[Sequence, list[Beam]] = defaultdict(list)
        for beam in search.beams:
            children[_parent(beam, parents)].append(beam)
        heirs = {_heir(parent, beams): parent for parent, beams in children.items()}
        taken = {parent.index for parent in children}
        free_indexes = (index for index in range(search.width) if index not in taken)
        sequences: list[Sequence] = []
        forks: list[Sequence] = []
        for beam in search.beams:
            sequence = heirs.get(beam)
            if sequence is None:
                sequence = self._fork(_parent(beam, parents), beam, next(free_indexes))
                forks.append(sequence)
            sequences.append(sequence)
        self._requests.replace_sequences(request, sequences)
        for beam, sequence in heirs.items():
            self._append(sequence, beam)
        for sequence in forks:
            self._waiting.push(sequence, 1)  # its other tokens are in the prefix cache

    def _fork(self, parent: Sequence, beam: Beam, index: int) -> Sequence:
        """A new sequence: the tokens of `parent`, whose full blocks it finds in the cache, and the
        last one of `beam`."""
        if parent.table is not None:
            num_computed = int(self._worker.batch.num_computed[parent.slot])
            self._worker.blocks.publish(parent.table, parent.pack(), num_computed, None)
        return parent.fork(index, beam.token_id)

    def _append(self, sequence: Sequence, beam: Beam) -> None:
        """Continue a sequence with the last token of a beam."""
        candidates = _candidates(sequence)
        sequence.candidates = None
        sequence.tokens.append(beam.token_id)
        is_sampled = beam.token_id == candidates.sampled
        if sequence.status is Status.RUNNING:
            if is_sampled or not self._worker.info.is_recurrent:
                self._worker.batch.continue_beam(sequence, joins_again=not is_sampled)
                return
            self._worker.release(sequence)
        self._waiting.push(sequence)

    # --------------------------------------------------------------------- end

    def _finish(self, request: Request, search: BeamSearch) -> None:
        """Emit the best texts and end the request."""
        num_wanted = request.sampling.n
        if len(search.finished) < num_wanted:
            self._requests.fail(
                request,
                400,
                f"beam search found {len(search.finished)} different texts, n is {num_wanted}: "
                "the request's parameters exclude all others; lower n",
                reason="too_few_texts",
            )
            return
        texts = {
            index: text
            for index, text in enumerate(search.finished[:num_wanted])
            if index not in search.unwanted
        }
        self._emit(request, texts)
        self._requests.abort(request)

    def _emit(self, request: Request, texts: dict[int, Hypothesis]) -> None:
        paths = [text.beam.path() for text in texts.values()]
        num_cached = request.sequences[0].num_cached_tokens or 0
        request.output_buffer.add_tokens(
            [request.handle] * len(texts),
            list(texts),
            [len(path) for path in paths],
            [_reason(text) for text in texts.values()],
            [text.beam.token_id if text.is_stopped else -1 for text in texts.values()],
            [num_cached] * len(texts),
            token_ids=[beam.token_id for path in paths for beam in path],
            logprobs=None if request.sampling.logprobs is None else _logprobs(paths),
        )


def _search(request: Request) -> BeamSearch:
    assert request.search is not None
    return request.search


def _candidates(sequence: Sequence) -> Candidates:
    assert sequence.candidates is not None
    return sequence.candidates


def _parent(beam: Beam, parents: dict[Beam, Sequence]) -> Sequence:
    assert beam.parent is not None
    return parents[beam.parent]


def _heir(parent: Sequence, beams: list[Beam]) -> Beam:
    """The continuation that keeps the sequence: what the worker has sampled, if it is one."""
    sampled = _candidates(parent).sampled
    return next((beam for beam in beams if beam.token_id == sampled), beams[0])


def _reason(text: Hypothesis) -> FinishReason:
    return FinishReason.STOP if text.is_stopped else FinishReason.LENGTH


def _logprobs(paths: list[list[Beam]]) -> LogprobColumns:
    """A row a token: the token itself, then the most likely ones."""
    beams = [beam for path in paths for beam in path]
    entries = [
        entry
        for beam in beams
        for entry in (
            (beam.token_id, beam.logprob, beam.rank),
            *((token, logprob, rank) for rank, (token, logprob) in enumerate(beam.top, 1)),
        )
    ]
    return LogprobColumns(
        np.array([1 + len(beam.top) for beam in beams], np.int32),
        [token for token, _, _ in entries],
        [logprob for _, logprob, _ in entries],
        [rank for _, _, rank in entries],
    )
