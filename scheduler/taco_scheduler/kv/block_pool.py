"""Block pool: the free list and the reference counts of one tier's blocks."""

from array import array
from collections.abc import Iterable

import numpy as np

from taco_proto.steps import IntArray
from taco_scheduler.kv.block_ids import BlockIds, block_ids

MIN_VECTOR = 64  # blocks; below that a loop is faster than numpy


class BlockPool:
    """The blocks 0 … num_blocks - 1 of one tier.

    The reference count of a block is the number of its owners. On the device, these are sequences;
    on the host, copies that read or write the block. The radix tree is one more owner of a block
    that it holds. A block without owners is free.

    Raises:
        ValueError: `num_blocks` is below 1.
    """

    __slots__ = ("_free", "_references", "num_blocks")

    # Unused blocks cost no memory: a worker may report 2^26 blocks. The blocks from
    # len(_references) on are free, and are not on the free list.

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, got {num_blocks}")
        self.num_blocks = num_blocks
        self._free = block_ids()  # a stack of free blocks that were used before
        self._references = block_ids()  # of the blocks that were ever used

    @property
    def num_free(self) -> int:
        return len(self._free) + self.num_blocks - len(self._references)

    def num_owners(self, block: int) -> int:
        return self._references[block] if block < len(self._references) else 0

    def allocate(self, count: int) -> BlockIds | None:
        """Allocate `count` blocks with one reference each; None if too few are free."""
        references = self._references
        num_new = count - len(self._free)
        if num_new > self.num_blocks - len(references):
            return None
        blocks = self._free[: -count - 1 : -1]
        del self._free[max(0, -num_new) :]
        if len(blocks) >= MIN_VECTOR:
            self._counts()[_vector(blocks)] = 1
        else:
            for block in blocks:
                references[block] = 1
        if num_new > 0:
            first = len(references)
            blocks.extend(range(first, first + num_new))
            references += block_ids([1]) * num_new
        return blocks

    def retain(self, blocks: Iterable[int]) -> None:
        """Add an owner to each block. A `BlockIds` must name each block once.

        Raises:
            RuntimeError: a block is free.
        """
        if isinstance(blocks, array) and len(blocks) >= MIN_VECTOR:
            indexes, counts = _vector(blocks), self._counts()
            owners = counts.take(indexes)
            if np.count_nonzero(owners) == len(blocks):
                owners += 1
                counts[indexes] = owners
                return
        references = self._references
        for block in blocks:
            if block >= len(references) or references[block] == 0:
                raise RuntimeError(f"block {block} is free and cannot be shared")
            references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Remove an owner of each block; a block without owners is free.

        A `BlockIds` must name each block once.

        Raises:
            RuntimeError: a block is free already.
        """
        if isinstance(blocks, array) and len(blocks) >= MIN_VECTOR:
            indexes, counts = _vector(blocks), self._counts()
            owners = counts.take(indexes)
            if np.count_nonzero(owners) == len(blocks):
                owners -= 1
                counts[indexes] = owners
                self._free.frombytes(indexes[owners == 0].tobytes())
                return
        references = self._references
        for block in blocks:
            count = (references[block] if block < len(references) else 0) - 1
            if count < 0:
                raise RuntimeError(f"block {block} is freed twice")
            references[block] = count
            if count == 0:
                self._free.append(block)

    def _counts(self) -> IntArray:
        """A view of the references, which cannot grow while it exists."""
        return np.frombuffer(self._references, dtype=np.int32)


def _vector(blocks: BlockIds) -> IntArray:
    return np.frombuffer(blocks, dtype=np.int32)
