"""The products of LoRA adapters in torch, without a loop over adapters or rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taco_worker.models.dtypes import dtype_name
from taco_worker.models.lora.factors import Factors


class AdapterWeights(nn.Module):
    """A and B of all adapters of one product, side by side.

    The cost depends on the number of adapters, not on those that a step uses: it needs no data on
    the host, so that CUDA graphs hold it.
    """

    def __init__(
        self, factors: Sequence[Factors | None], dtype: torch.dtype, device: torch.device
    ) -> None:
        """
        Args:
            factors: A [rank, k] and B [n, rank] of each adapter; ranks may differ. None: it adds
                nothing.

        Raises:
            ValueError: a number is not finite in `dtype`.
        """
        super().__init__()
        given = [pair for pair in factors if pair is not None]
        self._rank = max(a.shape[0] for a, _ in given)
        k, n = given[0][0].shape[1], given[0][1].shape[0]
        a = torch.zeros(len(factors), self._rank, k, dtype=dtype, device=device)
        b = torch.zeros(n, len(factors), self._rank, dtype=dtype, device=device)
        for index, pair in enumerate(factors):
            if pair is not None:
                rank = pair[0].shape[0]
                a[index, :rank] = pair[0]
                b[:, index, :rank] = pair[1]
        if not (a.isfinite().all() and b.isfinite().all()):
            # Zeros of other rows are multiplied with B.
            raise ValueError(f"a number of a LoRA adapter is too large for {dtype_name(dtype)}")
        self.a = nn.Parameter(a.flatten(0, 1), requires_grad=False)
        self.b = nn.Parameter(b.flatten(1), requires_grad=False)
        numbers = torch.arange(len(factors), dtype=torch.int32, device=device)
        self._numbers: Tensor
        self.register_buffer("_numbers", numbers, persistent=False)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        """B_i (A_i x) with the adapter i of each row; 0 for rows without one.

        Args:
            x: [num_rows, k].
            ids: integers [num_rows]; negative: no adapter.

        Returns:
            [num_rows, n].
        """
        inner = F.linear(x, self.a).unflatten(1, (-1, self._rank))
        is_other = ids[:, None] != self._numbers
        # Not a product with zeros: what overflows in one adapter would be NaN in the rows of all.
        return F.linear(inner.masked_fill(is_other[:, :, None], 0).flatten(1), self.b)
