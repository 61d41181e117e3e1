"""Stop checks: a stop token or the length limit ends a sequence."""

from collections.abc import Iterable

import numpy as np

from taco_proto.requests import FinishReason
from taco_proto.steps import IntArray
from taco_scheduler.state.batch import Batch
from taco_scheduler.state.sequence import Request, Sequence

_STOP = np.int32(FinishReason.STOP)
_LENGTH = np.int32(FinishReason.LENGTH)


class StopChecker:
    """Stop checks for one model's vocabulary and end-of-sequence tokens."""

    def __init__(self, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        # A lookup by token id costs the same for one EOS token as for ten.
        self._is_eos = np.zeros(vocab_size, dtype=np.bool_)
        self._is_eos[[token for token in eos_token_ids if 0 <= token < vocab_size]] = True

    def finish_reasons(
        self, batch: Batch, slots: IntArray, tokens: IntArray, lengths: IntArray
    ) -> IntArray:
        """Why sequences would end with each new token, as `FinishReason` values.

        Args:
            slots: slot of each token's sequence.
            lengths: length of its sequence up to this token, inclusive.
        """
        stops = self._is_eos[tokens] & ~batch.ignore_eos[slots]
        has_stop_tokens = batch.has_stop_tokens[slots]
        if has_stop_tokens.any():
            for row in np.flatnonzero(has_stop_tokens & ~stops).tolist():
                request = batch.owner(int(slots[row])).request
                stops[row] = int(tokens[row]) in request.stop_token_ids
        is_full = lengths >= batch.limit[slots]
        reasons = is_full * _LENGTH
        reasons[stops] = _STOP
        return reasons

    def finish_reason(self, sequence: Sequence, limit: int) -> FinishReason:
        """Why one sequence, running or not, ends with its last generated token, if it does."""
        if sequence.num_generated > 0 and self.ends(sequence.request, sequence.tokens[-1]):
            return FinishReason.STOP
        if len(sequence.tokens) >= limit:
            return FinishReason.LENGTH
        return FinishReason.RUNNING

    def num_end_tokens(self, request: Request) -> int:
        """Tokens that end a sequence of the request; one that ends it twice over counts twice."""
        num_eos = 0 if request.ignores_eos else int(self._is_eos.sum())
        return num_eos + len(request.stop_token_ids)

    def ends(self, request: Request, token: int) -> bool:
        """Whether a token ends a sequence of the request."""
        is_eos = bool(self._is_eos[token]) and not request.ignores_eos
        return is_eos or token in request.stop_token_ids
