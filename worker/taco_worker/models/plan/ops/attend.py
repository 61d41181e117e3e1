"""Attention over the paged KV cache, and the write of a step's keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taco_kernels.attention_options import AttentionOptions, BlockSparse
from taco_worker.models.plan.ops.op import Op, Shape, optional
from taco_worker.models.plan.slices import Slice


@dataclass(frozen=True, slots=True)
class WriteKV(Op):
    """Stores the step's keys and values.

    Attributes:
        entry: index of the KV entry.
        value: None for a latent entry, whose values are the first columns of its keys.
    """

    entry: int
    key: Slice
    value: Slice | None

    @property
    def reads(self) -> tuple[Slice, ...]:
        return (self.key,) if self.value is None else (self.key, self.value)

    @property
    def writes(self) -> tuple[Slice, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Attend(Op):
    """Causal attention of each token over its own sequence.

    Attributes:
        query: [num_heads * key_dim].
        out: [num_heads * value_dim].
        entry: index of the KV entry that it reads; several ops may read one.
        scale: factor on query-key products.
        window: tokens that a token sees, itself included; None: all.
        cap: products s become cap * tanh(s / cap).
        alibi: slope per head: slope * (key position - query position) is added to a product.
        sinks: parameter [num_heads]: one more logit per head in the softmax's sum.
        log_n: queries at positions p >= log_n are scaled by log(p + 1) / log(log_n).
        block_sparse: the pattern of visible blocks; None: all.

    Raises:
        ValueError: scale, window, cap or log_n is too small.
    """

    query: Slice
    out: Slice
    entry: int
    num_heads: int
    scale: float
    window: int | None = None
    cap: float | None = None
    alibi: tuple[float, ...] | None = None
    sinks: str | None = None
    log_n: int | None = None
    block_sparse: BlockSparse | None = None

    def __post_init__(self) -> None:
        # What the kernels check when they are called, before weights are loaded.
        AttentionOptions(self.scale, self.window, self.cap, log_n=self.log_n)

    @property
    def reads(self) -> tuple[Slice, ...]:
        return (self.query,)

    @property
    def writes(self) -> tuple[Slice, ...]:
        return (self.out,)

    @property
    def parameters(self) -> Mapping[str, Shape]:
        return optional((self.sinks, (self.num_heads,)))
