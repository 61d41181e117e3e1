"""The prompts that were given to a replica of late, of which its cache may not know yet."""

from taco_scheduler.kv.block_manager import TOKEN_BYTES
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.sequence import Sequence

FirstBlock = tuple[CacheNamespace, bytes]


def first_block(sequence: Sequence, block_size: int) -> FirstBlock | None:
    """What a sequence must share to match another's blocks; None if it can match none."""
    if len(sequence.tokens) <= block_size:
        return None
    return (sequence.request.namespace, sequence.tokens[:block_size].tobytes())


class RecentPrefixes:
    """By first block the newest sequence that has it, as long as that has not ended."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._newest: dict[FirstBlock, Sequence] = {}

    def add(self, sequence: Sequence) -> None:
        key = first_block(sequence, self._block_size)
        if key is not None:
            self._newest[key] = sequence

    def forget(self, sequence: Sequence) -> None:
        if not self._newest:
            return
        key = first_block(sequence, self._block_size)
        if key is not None and self._newest.get(key) is sequence:
            del self._newest[key]

    def num_common_tokens(self, sequence: Sequence) -> int:
        """Of a sequence, the tokens in whole blocks that another one has in common with it; at
        least one of its tokens is left to compute.
        """
        key = first_block(sequence, self._block_size)
        other = None if key is None else self._newest.get(key)
        if other is None:
            return 0
        block_bytes = self._block_size * TOKEN_BYTES
        end = min(len(sequence.tokens) - 1, len(other.tokens)) // self._block_size
        own, others = memoryview(sequence.tokens).cast("B"), memoryview(other.tokens).cast("B")
        # Blocks below `start` are known to be equal, block `end` and those behind it are not.
        start = 1 if end else 0
        if own[: end * block_bytes] == others[: end * block_bytes]:
            return end * self._block_size
        while end - start > 1:
            middle = (start + end) // 2
            span = slice(start * block_bytes, middle * block_bytes)
            if own[span] == others[span]:
                start = middle
            else:
                end = middle
        return start * self._block_size
