"""Where the KV of one sequence lies."""

from dataclasses import dataclass

from taco_scheduler.kv.block_ids import BlockIds
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.kv.radix_node import Node


@dataclass(slots=True, eq=False)
class BlockTable:
    """The blocks of one sequence.

    Attributes:
        blocks: block i holds the KV of tokens [i * block_size, (i + 1) * block_size). Append-only
            while the sequence runs.
        num_cached_tokens: tokens found in the prefix cache at allocation, in whole blocks. Their
            blocks are shared and must not be written.
        node: end of the prefix that the sequence pins in the radix tree.
        num_pinned_blocks: its length. The tree may hold another sequence's blocks for it.
        namespace: with whom it shares cached blocks.
        is_discarded: nothing that it holds stays cached when it is released, unless others use it.
        sealed: a failed step took part of the prefix back: nothing more of this table is cached.
    """

    blocks: BlockIds
    num_cached_tokens: int
    node: Node | None
    num_pinned_blocks: int
    namespace: CacheNamespace
    sealed: bool = False
    is_discarded: bool = False
