"""The feed-forward block (MLP) of a decoder layer."""

import torch
from torch import Tensor, nn

from taco_worker.layers.activation import find_activation
from taco_worker.layers.linear import Linear
from taco_worker.layers.ops import LayerOps
from taco_worker.models.decoder_config import DecoderConfig


class MLP(nn.Module):
    """down(activation(up(x)))"""

    def __init__(self, config: DecoderConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.activation = find_activation(config.activation)
        self.up_proj = Linear(hidden, inner, bias=bias, dtype=dtype, device=device)
        self.down_proj = Linear(inner, hidden, bias=bias, dtype=dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.up_proj(x)))


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), gate and up fused"""

    def __init__(
        self, config: DecoderConfig, ops: LayerOps, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.ops = ops
        if config.activation != "silu":
            raise ValueError(f"gated MLPs use silu, not {config.activation!r}")
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_up_proj = Linear(hidden, 2 * inner, bias=bias, dtype=dtype, device=device)
        self.down_proj = Linear(inner, hidden, bias=bias, dtype=dtype, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.ops.silu_mul(self.gate_up_proj(x)))
