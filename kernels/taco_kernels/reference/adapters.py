"""Reference of the products of LoRA adapters: one adapter at a time, in float32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def multiply_adapters(
    x: Tensor, ids: Tensor, matrices: Sequence[tuple[Tensor, Tensor] | None], n: int
) -> Tensor:
    """B_a (A_a x) with the adapter a of each row (Hu et al. 2021, "LoRA", section 4.1).

    Args:
        x: [num_rows, k].
        ids: [num_rows]; negative: no adapter.
        matrices: A [rank, k] and B [n, rank] of each adapter; None: it adds nothing.

    Returns:
        float32 [num_rows, n], 0 for rows without an adapter.
    """
    out = torch.zeros(x.shape[0], n, device=x.device)
    for adapter, pair in enumerate(matrices):
        if pair is None:
            continue
        a, b = pair
        rows = ids == adapter
        out[rows] = x[rows].float() @ a.float().T @ b.float().T
    return out
