"""The options of a layer's attention, which every implementation takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class BlockSparse:
    """Attention to the nearest blocks of tokens and to every n-th block before them.

    Head h of a token in block q sees block k, for k <= q, if q - k < num_local_blocks or
    (k + head_offset + h * head_step + 1) % stride == 0. Block 0 begins at position 0. (Abdin et al.
    2024, "Phi-3 Technical Report", section 2; Child et al. 2019, "Generating Long Sequences with
    Sparse Transformers".)

    Attributes:
        block_size: tokens of a block; not the block of the KV cache.
        num_local_blocks: nearest blocks that a token sees, its own included.
        stride: distance of the further blocks that a head sees.
        head_step: shift of the further blocks from one query head to the next; 0: all heads see the
            same blocks.
        head_offset: shift of head 0, for a shard of a model's heads.
    """

    block_size: int
    num_local_blocks: int
    stride: int
    head_step: int = 0
    head_offset: int = 0

    def __post_init__(self) -> None:
        if min(self.block_size, self.num_local_blocks, self.stride) < 1:
            raise ValueError(f"block size, local blocks and stride must be positive, not {self}")
        if min(self.head_step, self.head_offset) < 0:
            raise ValueError(f"the shifts of heads must not be negative, not {self}")


@dataclass(frozen=True, slots=True, eq=False)
class AttentionOptions:
    """How scores become weights, and which tokens a token sees.

    A score is scale * (query · key), with `log_n` times max(1, log(position + 1) / log(log_n)),
    then capped, then biased by ALiBi. `sinks` join the softmax's sum, without a value.

    Attributes:
        scale: positive factor on query-key products.
        window: number of tokens that a token sees, itself included; None: all.
        cap: scores become cap * tanh(score / cap).
        alibi: float32 [num_heads], slopes; slope * (key position - query position) is added to a
            score (Press et al. 2021, "Train Short, Test Long").
        sinks: float32 [num_heads]; exp(sink) is added to the sum of the weights (OpenAI 2025,
            "gpt-oss model card", section 2.2).
        log_n: length in tokens that the model was trained with; queries at positions beyond it are
            scaled up with the logarithm of their position (Bai et al. 2023, "Qwen Technical
            Report", section 3.2).
        block_sparse: which blocks a token sees, in addition to `window`.
    """

    scale: float
    window: int | None = None
    cap: float | None = None
    alibi: Tensor | None = None
    sinks: Tensor | None = None
    log_n: int | None = None
    block_sparse: BlockSparse | None = None

    def __post_init__(self) -> None:
        for name in ("scale", "cap"):
            number = getattr(self, name)
            if number is not None and not (math.isfinite(number) and number > 0):
                raise ValueError(f"the attention's {name} must be positive, not {number}")
        for name, least in (("window", 1), ("log_n", 2)):
            number = getattr(self, name)
            if number is not None and number < least:
                raise ValueError(f"the attention's {name} must be at least {least}, not {number}")

    def check_heads(self, num_heads: int) -> None:
        """Raise ValueError unless slopes and sinks are contiguous float32 [num_heads]."""
        for name in ("alibi", "sinks"):
            numbers: Tensor | None = getattr(self, name)
            if numbers is None:
                continue
            kind = str(numbers.dtype).removeprefix("torch.")
            if kind != "float32" or numbers.shape != (num_heads,) or not numbers.is_contiguous():
                raise ValueError(
                    f"{name} must be contiguous float32 [{num_heads}], not {kind} "
                    f"{list(numbers.shape)}"
                )
