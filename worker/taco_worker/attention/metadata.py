"""What attention needs to know of a step's batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from taco_worker.attention.tree_masks import TreeMasks


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """One step's tokens, sequence after sequence, and where their KV lies.

    Attributes:
        query_start_loc: int32 [num_seqs + 1], first token of each sequence in this step.
        seq_lens: int32 [num_seqs], tokens in the KV after this step (context and query).
        block_tables: int32 [num_seqs, max_blocks]; entries past a sequence's end are not read.
        kv_slot_mapping: int64 [num_tokens], block * block_size + offset of each token's KV.
        query_lens_host, seq_lens_host: the same lengths for the host, so that no back end has to
            wait for the device.
        tree: None where every token sees all of its sequence's tokens before it.
    """

    query_start_loc: Tensor
    seq_lens: Tensor
    block_tables: Tensor
    kv_slot_mapping: Tensor
    query_lens_host: list[int]
    seq_lens_host: list[int]
    tree: TreeMasks | None = None
