"""What a draft worker knows of its sequences: their tokens, and the KV blocks that hold them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

import numpy as np

from taco_proto.drafts import LongArray
from taco_proto.steps import IntArray


class DraftSequence:
    """One sequence; its drafts stand behind its own tokens until those take their place.

    Attributes:
        number: what the scheduler calls it.
        token_ids: int32 [max_model_len]; the operating system hands memory out as it is written.
        num_tokens: its own tokens, without drafts.
        num_computed_tokens: tokens, and drafts behind them, whose KV is in `blocks`.
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
        """Own tokens without KV: at least the last one, which the first draft follows."""
        return self.num_tokens - self.num_computed_tokens

    def replace(self, start: int, token_ids: IntArray) -> None:
        """Put `token_ids` behind the first `start` tokens, in place of all that stood there.

        KV stays as far as what stood there was the same.
        """
        end = start + token_ids.size
        before = self.token_ids[start : min(self.num_computed_tokens, end)]
        differs = before != token_ids[: before.size]
        num_same = int(differs.argmax()) if differs.any() else before.size
        self.num_computed_tokens = min(self.num_computed_tokens, start + num_same, end - 1)
        self.token_ids[start:end] = token_ids
        self.num_tokens = end

    def add_drafts(self, token_ids: IntArray) -> None:
        """Keep what was drafted; all tokens but the last draft have KV."""
        end = self.num_tokens + token_ids.size
        self.token_ids[self.num_tokens : end] = token_ids
        self.num_computed_tokens = end - 1


class SequenceTable:
    """All sequences and the pool of KV blocks that they share.

    Tokens are kept until a sequence leaves. KV is a cache of them: when blocks run out, the
    sequences that were asked for least recently lose theirs and are computed again when they are
    asked for.
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
        self._sequences: OrderedDict[int, DraftSequence] = OrderedDict()  # least recent first
        self._free = list(range(self._num_blocks))

    def leave(self, numbers: LongArray) -> None:
        for number in numbers.tolist():
            if number in self._sequences:
                self._drop_kv(self._sequences.pop(number))

    def extend(self, number: int, num_known: int, token_ids: IntArray) -> DraftSequence | None:
        """Take in what is asked for; None if it cannot be drafted for, and is not known any more.

        That is a sequence whose first tokens never came, one that has no token or too many, or
        tokens that are not in the vocabulary.
        """
        sequence = self._sequences.pop(number, None) or DraftSequence(number, self._max_model_len)
        has_room = 0 < num_known + token_ids.size < self._max_model_len
        if (
            not 0 <= num_known <= sequence.num_tokens
            or not has_room
            or (token_ids < 0).any()
            or (token_ids >= self._vocab_size).any()
        ):
            self._drop_kv(sequence)
            return None
        sequence.replace(num_known, token_ids)
        self._sequences[number] = sequence
        return sequence

    def reserve(self, sequence: DraftSequence, num_tokens: int, in_use: Collection[int]) -> bool:
        """Give a sequence the blocks for `num_tokens`, if need be those of others.

        Args:
            in_use: sequences that keep theirs.

        Returns:
            Whether there were enough.
        """
        count = -(-num_tokens // self._block_size) - len(sequence.blocks)
        if count > len(self._free):
            self._evict(count, {*in_use, sequence.number})
        if count > len(self._free):
            return False
        sequence.blocks += [self._free.pop() for _ in range(count)]
        return True

    def _evict(self, count: int, in_use: Collection[int]) -> None:
        """Free blocks until `count` are free, if that can be."""
        for number, sequence in self._sequences.items():
            if len(self._free) >= count:
                return
            if number not in in_use:
                self._drop_kv(sequence)

    def _drop_kv(self, sequence: DraftSequence) -> None:
        self._free += sequence.blocks
        sequence.blocks = []
        sequence.num_computed_tokens = 0
