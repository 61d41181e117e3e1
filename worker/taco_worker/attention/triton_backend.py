"""Attention by TACO's Triton kernels, which CUDA graphs can capture."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from taco_kernels.attention_options import AttentionOptions
from taco_kernels.kv_entry import KVEntry
from taco_kernels.triton.attention import AttentionBatch, TreeRows, paged_attention, plan_batch
from taco_kernels.triton.attention_plan import AttentionPlan
from taco_worker.attention.kv_cache import KVCache
from taco_worker.attention.metadata import AttentionMetadata
from taco_worker.attention.step_plans import StepPlans


@dataclass(frozen=True, slots=True)
class _Step:
    batch: AttentionBatch
    plan: AttentionPlan


class TritonAttention:
    """Reads lengths and block tables on the device; the host's lengths are upper bounds.

    Between layers it keeps only the metadata's own tensors and host numbers. A graph capture uses
    the same metadata object as its warm-up and must not use tensors that the warm-up allocated.
    """

    name = "triton"
    supports_trees = True
    supports_scales = True

    def __init__(self) -> None:
        self._steps: StepPlans[_Step] = StepPlans()

    def unsupported(self, options: AttentionOptions, entry: KVEntry) -> str | None:
        return None

    def attend(
        self,
        query: Tensor,
        kv_cache: KVCache,
        entry: int,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> Tensor:
        keys, values = kv_cache.key(entry), kv_cache.value(entry)
        kind = (options.window, options.cap is None, query.shape[1], kv_cache.entries[entry])
        step = self._steps.get(
            metadata, kind, lambda: _plan(query, keys, values, metadata, options)
        )
        key_scale, value_scale = kv_cache.scales(entry)
        return paged_attention(
            query,
            keys,
            values,
            step.batch,
            options,
            key_scale=key_scale,
            value_scale=value_scale,
            plan=step.plan,
        )


def _plan(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    metadata: AttentionMetadata,
    options: AttentionOptions,
) -> _Step:
    batch = AttentionBatch(
        query_start=metadata.query_start_loc,
        seq_lens=metadata.seq_lens,
        block_tables=metadata.block_tables,
        num_seqs=len(metadata.seq_lens_host),
        max_query_len=max(metadata.query_lens_host, default=0),
        max_seq_len=max(metadata.seq_lens_host, default=0),
        tree=None
        if metadata.tree is None
        else TreeRows(metadata.tree.masks, metadata.tree.positions),
    )
    return _Step(batch, plan_batch(query, keys, values, batch, options))
