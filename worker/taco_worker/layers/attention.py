"""The options of an attention op, with its parameters as tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from taco_kernels.attention_options import AttentionOptions
from taco_worker.models.plan.ops.attend import Attend


def attention_options(
    op: Attend, parameters: Mapping[str, Tensor], device: torch.device | None = None
) -> AttentionOptions:
    """`parameters`: by name, loaded, on `device`; sinks are widened to float32."""
    alibi = None
    if op.alibi is not None:
        alibi = torch.tensor(op.alibi, dtype=torch.float32, device=device)
    return AttentionOptions(
        scale=op.scale,
        window=op.window,
        cap=op.cap,
        alibi=alibi,
        sinks=None if op.sinks is None else parameters[op.sinks].float(),
        log_n=op.log_n,
        block_sparse=op.block_sparse,
    )
