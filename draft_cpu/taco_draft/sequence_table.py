"""The sequences of a draft worker: their tokens, and their KV blocks with LRU eviction."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

import numpy as np

from taco_proto.drafts import LongArray
from taco_proto.steps import IntArray


class DraftSequence:
    """One sequence: its own tokens, followed by drafts until its next tokens replace them.

    Attributes:
        number: the scheduler's number of the sequence.
        token_ids: int32 [max_model_len]; untouched pages take no memory.
        num_tokens: number of its tokens, without drafts.
        num_computed_tokens: tokens, including drafts after them, with KV in `blocks`.
        blocks: its KV blocks, in order.
    """

    def __init__(self, number: int, max_model_len: int) -> None:
        self.number = number
        self.token_ids: IntArray = np.empty(max_model_len, dtype=np.int32)
        self.num_tokens = 0
        self.num_computed_tokens = 0
        self.blocks: list[int] = []

    @property
    def num_missing_tokens(self) -> int:
        """Own tokens without KV: at least the last one, from which the first draft is computed."""
        return self.num_tokens - self.num_computed_tokens

    def replace(self, start: int, token_ids: IntArray) -> None:
        """Replace everything after the first `start` tokens by `token_ids`.

        KV stays valid up to the first token that differs.
        """
        end = start + token_ids.size
        before = self.token_ids[start : min(self.num_computed_tokens, end)]
        differs = before != token_ids[: before.size]
        num_same = int(differs.argmax()) if differs.any() else before.size
        self.num_computed_tokens = min(self.num_computed_tokens, start + num_same, end - 1)
        self.token_ids[start:end] = token_ids
        self.num_tokens = end

    def add_drafts(self, token_ids: IntArray) -> None:
        """Append drafts; all tokens but the last draft have KV."""
        end = self.num_tokens + token_ids.size
        self.token_ids[self.num_tokens : end] = token_ids
        self.num_computed_tokens = end - 1


class SequenceTable:
    """All sequences, and the pool of KV blocks that they share.

    Tokens are kept until a sequence leaves. When blocks run out, the KV of the least recently
    requested sequences is evicted, and recomputed when they are requested again.
    """

    def __init__(
        self, *, num_blocks: int, block_size: int, max_model_len: int, vocab_size: int
    ) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self.clear()

    def clear(self) -> None:
        self._sequences: OrderedDict[int, DraftSequence] = (
            OrderedDict()
        )  # least recently requested first
        self._free = list(range(self._num_blocks))

    def leave(self, numbers: LongArray) -> None:
        for number in numbers.tolist():
            if number in self._sequences:
                self._free_blocks(self._sequences.pop(number))

    def extend(self, number: int, num_known: int, token_ids: IntArray) -> DraftSequence | None:
        """Add a request's tokens to a sequence; None if it cannot be drafted for.

        Such a sequence is forgotten: earlier tokens are missing, it has no tokens or too many, or a
        token is outside the vocabulary.
        """
        sequence = self._sequences.pop(number, None) or DraftSequence(number, self._max_model_len)
        has_room = 0 < num_known + token_ids.size < self._max_model_len
        if (
            not 0 <= num_known <= sequence.num_tokens
            or not has_room
            or (token_ids < 0).any()
            or (token_ids >= self._vocab_size).any()
        ):
            self._free_blocks(sequence)
            return None
        sequence.replace(num_known, token_ids)
        self._sequences[number] = sequence
        return sequence

    def reserve(self, sequence: DraftSequence, num_tokens: int, in_use: Collection[int]) -> bool:
        """Allocate blocks for `num_tokens` of a sequence; evicts other sequences if necessary.

        Args:
            in_use: sequences that must not be evicted.

        Returns:
            Whether there were enough blocks.
        """
        count = -(-num_tokens // self._block_size) - len(sequence.blocks)
        if count > len(self._free):
            self._evict(count, {*in_use, sequence.number})
        if count > len(self._free):
            return False
        sequence.blocks += [self._free.pop() for _ in range(count)]
        return True

    def _evict(self, count: int, in_use: Collection[int]) -> None:
        """Evict sequences, least recently requested first, until `count` blocks are free."""
        for number, sequence in self._sequences.items():
            if len(self._free) >= count:
                return
            if number not in in_use:
                self._free_blocks(sequence)

    def _free_blocks(self, sequence: DraftSequence) -> None:
        self._free += sequence.blocks
        sequence.blocks = []
        sequence.num_computed_tokens = 0
