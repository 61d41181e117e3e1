"""Other kernels for the same attention: torch's SDPA, FlexAttention, xformers, flashinfer.

All but flashinfer get contiguous keys and values, which paged KV never is. For a decode, the
query heads that share a KV head take the place of a prefill's tokens: otherwise most kernels
read the KV once per query head.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from bench.gpu.parts.attention_inputs import BLOCK_SIZE, PagedInputs

_FLASHINFER_WORKSPACE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class PeerCalls:
    """One call per layer; `rows` reshapes its result to [num_tokens, num_heads, head_dim]."""

    calls: Sequence[Callable[[], Tensor]]
    rows: Callable[[Tensor], Tensor]


def sdpa(backend: SDPBackend) -> Callable[[PagedInputs], PeerCalls]:
    """For a prefill each query head has its own copy of the KV, because some back ends cannot
    share it.
    """

    def make(inputs: PagedInputs) -> PeerCalls:
        is_prefill = inputs.case.new > 1
        copies = inputs.heads.query // inputs.heads.kv if is_prefill else 1

        def layer(index: int) -> Callable[[], Tensor]:
            query = _query(inputs, index)
            keys, values = (part.repeat_interleave(copies, 1) for part in inputs.dense(index))

            def call() -> Tensor:
                with sdpa_kernel([backend]):
                    return scaled_dot_product_attention(query, keys, values, is_causal=is_prefill)

            return call

        return PeerCalls([layer(index) for index in range(len(inputs.queries))], _rows(inputs))

    return make


def flex(inputs: PagedInputs) -> PeerCalls:
    """Compiled; with a block mask for prefill, without one for decode."""
    attention: Any = importlib.import_module("torch.nn.attention.flex_attention")
    # To test the script on a CPU, tracing is enough.
    compiler = "inductor" if inputs.out.is_cuda else "eager"
    compiled = torch.compile(attention.flex_attention, dynamic=False, backend=compiler)
    case, mask = inputs.case, None
    if case.new > 1:
        mask = attention.create_block_mask(
            lambda _batch, _head, row, column: row >= column,
            *(None, None, case.new, case.context),
            device=inputs.out.device,
        )

    def layer(index: int) -> Callable[[], Tensor]:
        query, (keys, values) = _query(inputs, index), inputs.dense(index)
        return lambda: compiled(query, keys, values, block_mask=mask, enable_gqa=case.new > 1)

    return PeerCalls([layer(index) for index in range(len(inputs.queries))], _rows(inputs))


def xformers(inputs: PagedInputs) -> PeerCalls:
    """Memory-efficient attention, [batch, tokens, kv_heads, group, dim], heads as views."""
    ops: Any = importlib.import_module("xformers.ops")
    case, heads = inputs.case, inputs.heads
    group = heads.query // heads.kv
    bias = None if case.new == 1 else ops.LowerTriangularMask()

    def layer(index: int) -> Callable[[], Tensor]:
        query = inputs.queries[index].view(case.batch, case.new, heads.kv, group, heads.dim)
        keys, values = (
            part.transpose(1, 2).unsqueeze(3).expand(-1, -1, -1, group, -1)
            for part in inputs.dense(index)
        )
        return lambda: ops.memory_efficient_attention_forward(query, keys, values, attn_bias=bias)

    return PeerCalls(
        [layer(index) for index in range(len(inputs.queries))],
        lambda output: output.reshape(inputs.out.shape),
    )


def flashinfer(inputs: PagedInputs) -> PeerCalls:
    """Runs over the same blocks as TACO's kernel."""
    module: Any = importlib.import_module("flashinfer")
    heads, device = inputs.heads, inputs.out.device
    workspace = torch.empty(_FLASHINFER_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    lengths = inputs.batch.seq_lens.tolist()
    counts = [-(-length // BLOCK_SIZE) for length in lengths]
    tables = zip(inputs.batch.block_tables, counts, strict=True)
    paged = (
        torch.tensor([0, *itertools.accumulate(counts)], device=device, dtype=torch.int32),
        torch.cat([table[:count] for table, count in tables]),
        (inputs.batch.seq_lens - 1) % BLOCK_SIZE + 1,
    )
    shape = (heads.query, heads.kv, heads.dim, BLOCK_SIZE)
    dtypes = {"q_data_type": inputs.out.dtype, "kv_data_type": inputs.out.dtype}
    if inputs.batch.max_query_len == 1:
        wrapper = module.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
        wrapper.plan(*paged, *shape, **dtypes)
    else:
        wrapper = module.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(inputs.batch.query_start, *paged, *shape, causal=True, **dtypes)

    def layer(index: int) -> Callable[[], Tensor]:
        return lambda: wrapper.run(inputs.queries[index], inputs.caches(index))

    return PeerCalls([layer(index) for index in range(len(inputs.queries))], lambda output: output)


PEERS: dict[str, Callable[[PagedInputs], PeerCalls]] = {
    "sdpa_flash": sdpa(SDPBackend.FLASH_ATTENTION),
    "sdpa_cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
    "flex": flex,
    "xformers": xformers,
    "flashinfer": flashinfer,
}


def _query(inputs: PagedInputs, index: int) -> Tensor:
    """[batch, heads, new, dim], or for a decode [batch, kv_heads, group, dim]."""
    case, heads = inputs.case, inputs.heads
    if case.new == 1:
        return inputs.queries[index].view(case.batch, heads.kv, -1, heads.dim)
    rows = inputs.queries[index].view(case.batch, case.new, heads.query, heads.dim)
    return rows.transpose(1, 2).contiguous()


def _rows(inputs: PagedInputs) -> Callable[[Tensor], Tensor]:
    if inputs.case.new == 1:
        return lambda output: output.reshape(inputs.out.shape)
    return lambda output: output.transpose(1, 2).reshape(inputs.out.shape)
