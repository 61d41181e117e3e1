"""A step's batch as attention sees it: sequence lengths, block tables and KV slots."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from taco_worker.attention.tree_masks import TreeMasks


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """The tokens of one step, sequence after sequence, and the places of their KV.

    Attributes:
        query_start_loc: int32 [num_seqs + 1], first token of each sequence in this step.
        seq_lens: int32 [num_seqs], tokens in the KV after this step (context and query).
        block_tables: int32 [num_seqs, max_blocks]; entries past a sequence's end are not read.
        kv_slot_mapping: int64 [num_tokens], block * block_size + offset of each token's KV.
        query_lens_host, seq_lens_host: the same lengths on the host, so that no back end waits for
            the device.
        tree: None if every token sees all earlier tokens of its sequence.
    """

    query_start_loc: Tensor
    seq_lens: Tensor
    block_tables: Tensor
    kv_slot_mapping: Tensor
    query_lens_host: list[int]
    seq_lens_host: list[int]
    tree: TreeMasks | None = None
