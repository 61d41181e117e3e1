"""Block tables: the blocks that hold one sequence's KV."""

from dataclasses import dataclass

from taco_scheduler.kv.block_ids import BlockIds
from taco_scheduler.kv.disk_transfers import PrefixSave
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.kv.radix_node import Node
from taco_scheduler.kv.sequence_snapshots import SequenceSnapshots


@dataclass(slots=True, eq=False)
class BlockTable:
    """The blocks of one sequence.

    Attributes:
        blocks: block i holds the KV of tokens [i * block_size, (i + 1) * block_size). Append-only
            while the sequence runs.
        num_cached_tokens: tokens found in the prefix cache at allocation, in whole blocks. Their
            blocks are shared and must not be written.
        node: end of the prefix that the sequence pins in the radix tree; None after its release.
        num_pinned_blocks: length of that prefix. The tree may hold another sequence's blocks for
            it.
        namespace: the sequences that it shares cached blocks with.
        sealed: a failed step removed a part of the prefix: no more blocks of this table are cached.
        is_discarded: its cached blocks are discarded on release, unless others use them.
        save: the prefix that the disk tier writes; None before the first block is computed.
        states: its state snapshots; None: the worker is not recurrent, or has no prefix cache.
    """

    blocks: BlockIds
    num_cached_tokens: int
    node: Node | None
    num_pinned_blocks: int
    namespace: CacheNamespace
    sealed: bool = False
    is_discarded: bool = False
    save: PrefixSave | None = None
    states: SequenceSnapshots | None = None
