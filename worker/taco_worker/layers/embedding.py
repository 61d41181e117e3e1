"""Embedding table; the loader fills its rows."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Embedding(nn.Module):
    def __init__(
        self, num_rows: int, size: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        weight = torch.empty(num_rows, size, dtype=dtype, device=device)
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)
