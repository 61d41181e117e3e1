"""One step's attention for the GPU kernels, in a cache that is poison but for what may be read."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from support.triton_interpreter import DEVICE
from taco_kernels.attention_options import AttentionOptions, BlockSparse
from taco_kernels.kv_entry import EntryScales
from taco_kernels.kv_format import KVFormat, quantize_rows
from taco_kernels.reference.attention import paged_attention as reference
from taco_kernels.triton.attention import AttentionBatch, TreeRows, paged_attention
from taco_kernels.triton.attention_plan import AttentionPlan, plan_attention
from taco_worker.attention.step_plans import indexable

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
# Of two layers.
FP8 = KVFormat(E4M3, (EntryScales(1.0, 1.0), EntryScales(0.5, 2.0)))
# The interpreter multiplies no bfloat16.
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * (DEVICE.type == "cuda")
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-3, torch.bfloat16: 1e-2}
_WILD_IDS = (2**31 - 1, -1, -(2**31), 10**6)
_LAYER = 1  # of two


@dataclass(frozen=True)
class Case:
    """What a step is made of.

    Attributes:
        lens: tokens of context and of the query, of each sequence.
        heads: of the query, and KV heads.
        head_dim: of queries and keys; also of values, unless value_dim says otherwise.
        is_latent: values are the beginnings of keys.
        kv_format: of the cache; None: the case's dtype.
        parents: for each sequence, None or the parent of each of its query tokens among them, -1
            for the context.
        spare_seqs, spare_tokens: capacity that no sequence uses, as in a CUDA graph.
    """

    lens: tuple[tuple[int, int], ...]
    heads: tuple[int, int] = (4, 2)
    head_dim: int = 64
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    window: int | None = None
    cap: float | None = None
    has_alibi: bool = False
    has_sinks: bool = False
    log_n: int | None = None
    sparse: BlockSparse | None = None
    value_dim: int | None = None
    is_latent: bool = False
    kv_format: KVFormat | None = None
    parents: tuple[tuple[int, ...] | None, ...] | None = None
    spare_seqs: int = 0
    spare_tokens: int = 0
    seed: int = 0

    @property
    def out_dim(self) -> int:
        return self.value_dim or self.head_dim

    @property
    def num_tokens(self) -> int:
        return sum(query_len for _, query_len in self.lens)

    @property
    def num_seqs(self) -> int:
        return len(self.lens) + self.spare_seqs


class Step:
    """Tensors of a case; `clean_keys` and `clean_values` are what the kernel is to see, in float32
    on the CPU."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.format = case.kv_format or KVFormat(case.dtype)
        torch.manual_seed(case.seed)
        num_heads, num_kv_heads = case.heads
        capacity = case.num_tokens + case.spare_tokens
        fused = torch.randn(capacity, num_heads + 2 * num_kv_heads, case.head_dim).to(case.dtype)
        fused[case.num_tokens :] = torch.nan
        self.query = fused.to(DEVICE)[:, :num_heads]
        self._make_caches()
        ends = list(accumulate((query_len for _, query_len in case.lens), initial=0))
        ends += [ends[-1]] * case.spare_seqs
        seq_lens = [sum(lens) for lens in case.lens] + [0] * case.spare_seqs
        self.batch = AttentionBatch(
            query_start=torch.tensor(ends, dtype=torch.int32, device=DEVICE),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32, device=DEVICE),
            block_tables=self.block_tables.to(DEVICE),
            num_seqs=case.num_seqs,
            max_query_len=max(query_len for _, query_len in case.lens),
            max_seq_len=max(seq_lens),
            tree=self._make_tree(capacity),
        )

    def _make_caches(self) -> None:
        """Layers of a block lie together; block ids that must not be read are wild."""
        case = self.case
        counts = [-(-sum(lens) // case.block_size) for lens in case.lens]
        num_blocks = sum(counts) + 1
        num_kv_heads = case.heads[1]
        kv_dtype = self.format.dtype
        key_size = case.block_size * num_kv_heads * case.head_dim
        value_size = 0 if case.is_latent else case.block_size * num_kv_heads * case.out_dim
        memory = torch.full((num_blocks, 2, key_size + value_size), torch.nan)
        memory = memory.to(kv_dtype).to(DEVICE)
        self._make_scales(num_blocks)
        layer, shape = memory[:, _LAYER], (case.block_size, num_kv_heads, -1)
        self.key_cache = layer[:, :key_size].unflatten(1, shape)
        if case.is_latent:
            self.value_cache = self.key_cache[..., : case.out_dim]
        else:
            self.value_cache = layer[:, key_size:].unflatten(1, shape)
        self.clean_keys = torch.zeros(num_blocks, *self.key_cache.shape[1:])
        self.clean_values = torch.zeros(num_blocks, *self.value_cache.shape[1:])
        self.clean_tables = torch.zeros(case.num_seqs, max(counts) + 1, dtype=torch.int32)
        wild = torch.tensor(_WILD_IDS)[torch.randint(len(_WILD_IDS), self.clean_tables.shape)]
        self.block_tables = wild.int()
        ids = torch.randperm(num_blocks)[: sum(counts)].split(counts)
        for sequence, (context_len, query_len) in enumerate(case.lens):
            blocks = ids[sequence]
            self.clean_tables[sequence, : len(blocks)] = blocks
            first = 0 if case.window is None else max(0, context_len - case.window + 1)
            if query_len == 0:
                continue
            self.block_tables[sequence, first // case.block_size : len(blocks)] = blocks[
                first // case.block_size :
            ]
            places = torch.arange(first, context_len + query_len)
            at = blocks[places // case.block_size], places % case.block_size
            parts = [(self.key_cache, self.clean_keys, self.key_scale)]
            if not case.is_latent:
                parts.append((self.value_cache, self.clean_values, self.value_scale))
            for cache, clean, scale in parts:
                numbers = torch.randn(len(places), *clean.shape[2:])
                at_device = at[0].to(DEVICE), at[1].to(DEVICE)
                if isinstance(scale, Tensor):
                    # Of very different sizes, so that small ones vanish where they are badly added.
                    numbers *= 2.0 ** -torch.randint(12, numbers.shape[:2]).unsqueeze(-1)
                    stored, scales = quantize_rows(numbers, kv_dtype)
                    scale[at_device] = scales.to(DEVICE)
                    clean[at] = stored.float() * scales.unsqueeze(-1)
                else:
                    stored = (numbers / scale).to(kv_dtype)
                    clean[at] = stored.float() * scale
                indexable(cache)[at_device] = indexable(stored).to(DEVICE)
        if case.is_latent:
            self.clean_values = self.clean_keys[..., : case.out_dim]

    def _make_scales(self, num_blocks: int) -> None:
        """Of the cache, or poison for those of tokens."""
        self.key_scale: float | Tensor = 1.0
        self.value_scale: float | Tensor = 1.0
        if self.format.has_token_scales:
            shape = (num_blocks, 2, self.case.block_size, self.case.heads[1])
            scales = torch.full(shape, torch.nan, device=DEVICE)
            self.key_scale, self.value_scale = scales[:, 0], scales[:, 1]
        elif (fixed := self.format.of_entry(_LAYER)) is not None:
            self.key_scale, self.value_scale = fixed.key, fixed.value
        if self.case.is_latent:
            self.value_scale = self.key_scale

    def _make_tree(self, capacity: int) -> TreeRows | None:
        if self.case.parents is None:
            return None
        masks, positions = [], []
        for (context_len, query_len), parents in zip(
            self.case.lens, self.case.parents, strict=True
        ):
            parents = parents or tuple(range(-1, query_len - 1))
            assert len(parents) == query_len
            own: list[int] = []
            depths: list[int] = []
            for token, parent in enumerate(parents):
                own.append(1 << token | (own[parent] if parent >= 0 else 0))
                depths.append(depths[parent] + 1 if parent >= 0 else 0)
            # A mask's last bit is the sign; longer steps are in causal order.
            signed = [mask - 2**64 if mask >= 2**63 else mask for mask in own]
            masks += signed if query_len <= 64 else [-1] * query_len
            positions += [context_len + depth for depth in depths]
        spare = [0] * (capacity - len(masks))
        return TreeRows(
            torch.tensor(masks + spare, dtype=torch.int64, device=DEVICE),
            torch.tensor(positions + spare, dtype=torch.int32, device=DEVICE),
        )

    def options(self, device: torch.device = DEVICE) -> AttentionOptions:
        case = self.case
        slopes = 0.5 ** torch.arange(1.0, case.heads[0] + 1)
        return AttentionOptions(
            float(case.head_dim**-0.5),
            window=case.window,
            cap=case.cap,
            alibi=slopes.to(device) if case.has_alibi else None,
            sinks=(2 - 8 * slopes).to(device) if case.has_sinks else None,
            log_n=case.log_n,
            block_sparse=case.sparse,
        )

    def plan(self, **overrides: Any) -> AttentionPlan:
        """The plan that would be made for the step, but for what is overridden."""
        bounds = {
            "num_tokens": len(self.query),
            "num_seqs": self.batch.num_seqs,
            "max_query_len": self.batch.max_query_len,
            "max_seq_len": self.batch.max_seq_len,
            "num_heads": self.case.heads[0],
            "num_kv_heads": self.case.heads[1],
            "key_dim": self.case.head_dim,
            "value_dim": self.case.out_dim,
            "latent": self.case.is_latent,
            "kv_bytes": self.key_cache.itemsize,
            "query_bytes": self.query.itemsize,
            "num_sms": 1,
            "window": self.case.window,
            "cap": self.case.cap,
        }
        return plan_attention(**{**bounds, **overrides})

    def attend(self, plan: AttentionPlan | None = None) -> Tensor:
        """The kernel's result, over memory that is full of NaN."""
        workspace = None
        if plan is not None:
            workspace = torch.full((plan.workspace_size,), torch.nan, device=DEVICE)
        return paged_attention(
            self.query,
            self.key_cache,
            self.value_cache,
            self.batch,
            self.options(),
            key_scale=self.key_scale,
            value_scale=self.value_scale,
            plan=plan,
            workspace=workspace,
            out=torch.full(
                (*self.query.shape[:2], self.case.out_dim),
                torch.nan,
                dtype=self.case.dtype,
                device=DEVICE,
            ),
        )

    def expected(self) -> Tensor:
        """What the reference makes of the same numbers, in float32."""
        tree = self.batch.tree
        return reference(
            self.query[: self.case.num_tokens].cpu().float(),
            self.clean_keys,
            self.clean_values,
            self.batch.query_start.cpu(),
            self.batch.seq_lens.cpu(),
            self.clean_tables,
            self.options(torch.device("cpu")),
            None if tree is None else tree.masks.cpu(),
            None if tree is None else tree.positions.cpu(),
        )

    def check(self, **overrides: Any) -> None:
        """The kernel against the reference, by a plan with these overrides."""
        out = self.attend(self.plan(**overrides))
        tolerance = _TOLERANCE[self.case.dtype]
        torch.testing.assert_close(
            out[: self.case.num_tokens].cpu().float(),
            self.expected(),
            atol=tolerance,
            rtol=tolerance,
        )
        assert out[self.case.num_tokens :].isnan().all()
