"""Beam search of one request: its beams, and the rules that choose among their continuations.

The rules are those of `generate(num_beams=…)` in transformers 5 (`GenerationMixin._beam_search`).
The score of a text is the sum of its tokens' log probabilities, divided by its number of tokens to
the power of `length_penalty`. Nothing here knows workers, slots or blocks.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from taco_proto.logprobs import LogprobColumns
from taco_proto.sampling_params import EarlyStopping


@dataclass(frozen=True, slots=True, eq=False)
class Beam:
    """Generated tokens, as the last one and the beam before it.

    Beams share their common beginnings, so that a step costs memory for its new tokens only.

    Attributes:
        parent: the beam without the last token; None: this beam has no tokens.
        rank: of the token among the candidates for its place, from 1.
        sum_logprobs: sum of the log probabilities of all tokens.
        top: the most likely tokens for that place and their log probabilities, best first, as many
            as the client asked for.
    """

    parent: "Beam | None" = None
    token_id: int = -1
    logprob: float = 0.0
    rank: int = 0
    num_tokens: int = 0
    sum_logprobs: float = 0.0
    top: tuple[tuple[int, float], ...] = ()

    def path(self) -> "list[Beam]":
        """The beams from the first token to this one."""
        beams = list(self._backwards())
        beams.reverse()
        return beams

    def _backwards(self) -> "Iterator[Beam]":
        beam = self
        while beam.parent is not None:
            yield beam
            beam = beam.parent


@dataclass(frozen=True, slots=True)
class Candidates:
    """The most likely next tokens of one beam, best first.

    Attributes:
        sampled: the token that the worker continues with unless it is told another one.
    """

    sampled: int
    token_ids: list[int]
    logprobs: list[float]

    @classmethod
    def of(cls, row: LogprobColumns) -> "Candidates":
        """From a row of log probabilities: the sampled token, then the most likely ones."""
        ids, logprobs = row.token_ids.tolist(), row.logprobs.tolist()
        return cls(ids[0], ids[1:], logprobs[1:])


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A complete text.

    Attributes:
        is_stopped: its last token ended it; False: it has reached the length limit.
    """

    score: float
    beam: Beam
    is_stopped: bool


class BeamSearch:
    """The state of one search, advanced a token at a time.

    Attributes:
        beams: the texts that may continue, best first; at most `width`.
        finished: the best complete texts, best first; at most `width`.
        num_candidates: tokens that each beam needs per step: enough for `width` beams that
            continue, whichever tokens end a text. The replica that runs the beams sets it.
        unwanted: places of the answer that the client has cancelled.
    """

    def __init__(
        self, width: int, length_penalty: float, early_stopping: EarlyStopping, num_top: int = 0
    ) -> None:
        """`num_top`: most likely tokens of each place that the client asked for."""
        self.width = width
        self.beams: list[Beam] = [Beam()]
        self.finished: list[Hypothesis] = []
        self.num_candidates = width
        self.unwanted: set[int] = set()
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping
        self._num_top = num_top

    def advance(
        self,
        candidates: Sequence[Candidates],
        is_end: Callable[[int], bool],
        max_tokens: int,
    ) -> bool:
        """Replace the beams by their best continuations.

        Args:
            candidates: of each beam.
            is_end: whether a token ends a text.
            max_tokens: generated tokens at which every text ends.

        Returns:
            Whether the search continues: no beam is left when it is over.
        """
        num_tokens = self.beams[0].num_tokens + 1
        options = [
            (beam.sum_logprobs + logprob, number, place)
            for number, (beam, row) in enumerate(zip(self.beams, candidates, strict=True))
            for place, logprob in enumerate(row.logprobs)
            if logprob > -math.inf  # a banned token
        ]
        options.sort(key=lambda option: (-option[0], option[1], option[2]))
        continued: list[Beam] = []
        for order, (sum_logprobs, number, place) in enumerate(options):
            # Complete texts count among the best `width` options only.
            if order >= self.width and (num_tokens >= max_tokens or len(continued) == self.width):
                break
            is_stopped = is_end(candidates[number].token_ids[place])
            if not is_stopped and num_tokens < max_tokens:
                if len(continued) < self.width:
                    continued.append(self._extended(number, candidates[number], place))
            elif order < self.width:
                beam = self._extended(number, candidates[number], place)
                self.finished.append(
                    Hypothesis(self._score(sum_logprobs, num_tokens), beam, is_stopped)
                )
        self.finished.sort(key=lambda text: -text.score)  # stable: the older one of equals wins
        del self.finished[self.width :]
        self.beams = continued if self._may_improve(continued, num_tokens, max_tokens) else []
        return bool(self.beams)

    def _extended(self, number: int, row: Candidates, place: int) -> Beam:
        parent, logprob = self.beams[number], row.logprobs[place]
        top = zip(row.token_ids[: self._num_top], row.logprobs[: self._num_top], strict=True)
        return Beam(
            parent,
            row.token_ids[place],
            logprob,
            place + 1,
            parent.num_tokens + 1,
            parent.sum_logprobs + logprob,
            tuple(top),
        )

    def _may_improve(self, beams: list[Beam], num_tokens: int, max_tokens: int) -> bool:
        """Whether a beam may still become one of the best `width` texts.

        With `early_stopping=False`, texts get no better as they grow: a heuristic. "never" assumes
        that all further tokens are certain, up to the greatest length if that gives a better score.
        """
        if not beams:
            return False
        if len(self.finished) < self.width:
            return True
        if self._early_stopping is True:
            return False
        if self._early_stopping == "never" and self._length_penalty > 0:
            num_tokens = max_tokens
        return self._score(beams[0].sum_logprobs, num_tokens) > self.finished[-1].score

    def _score(self, sum_logprobs: float, num_tokens: int) -> float:
        return sum_logprobs / float(num_tokens) ** self._length_penalty
