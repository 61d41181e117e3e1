"""Who owns which block: a free list and reference counts."""

from collections.abc import Iterable


class BlockPool:
    """The blocks 0 … num_blocks - 1 of one tier.

    A block's reference count is the number of its owners: the sequences that hold it (on the
    device) or the copies that read or write it (on the host), and one for the radix tree if it
    holds it. A block without owners is on the free list, exactly once.

    Raises:
        ValueError: there is no block.
    """

    __slots__ = ("_free", "_references", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, got {num_blocks}")
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack, lowest number on top
        self._references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def num_owners(self, block: int) -> int:
        return self._references[block]

    def allocate(self, count: int) -> list[int] | None:
        """Takes `count` blocks, each with one reference; None, taking none, if too few are free."""
        remaining = len(self._free) - count
        if remaining < 0:
            return None
        blocks = self._free[: -count - 1 : -1]
        del self._free[remaining:]
        references = self._references
        for block in blocks:
            references[block] = 1
        return blocks

    def retain(self, blocks: Iterable[int]) -> None:
        """Adds an owner to each block.

        Raises:
            RuntimeError: a block is free.
        """
        references = self._references
        for block in blocks:
            if references[block] == 0:
                raise RuntimeError(f"block {block} is free and cannot be shared")
            references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drops an owner of each block; a block without owners is free.

        Raises:
            RuntimeError: a block is free already.
        """
        references = self._references
        for block in blocks:
            count = references[block] - 1
            if count < 0:
                raise RuntimeError(f"block {block} is freed twice")
            references[block] = count
            if count == 0:
                self._free.append(block)
