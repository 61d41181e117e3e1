"""Norm layers; the loader fills their weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from taco_worker.layers.ops import LayerOps


class RMSNorm(nn.Module):
    def __init__(
        self, size: int, eps: float, ops: LayerOps, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.eps = eps
        self.ops = ops
        weight = torch.empty(size, dtype=dtype, device=device)
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """The norm of x. With a residual: of x + residual, and `residual` is set to that sum."""
        return self.ops.rms_norm(x, self.weight, self.eps, residual=residual)


class LayerNorm(nn.Module):
    def __init__(
        self, size: int, eps: float, ops: LayerOps, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.eps = eps
        self.ops = ops
        weight, bias = torch.empty(2, size, dtype=dtype, device=device)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """The norm of x. With a residual: of x + residual, and `residual` is set to that sum."""
        return self.ops.layer_norm(x, self.weight, self.bias, self.eps, residual=residual)
