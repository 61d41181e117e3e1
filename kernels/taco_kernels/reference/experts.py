"""Reference of the product of a mixture of experts: one expert at a time, in float32."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from taco_kernels.packed_codes import PackedExperts
from taco_kernels.reference.activation import ALPHA, act_mul


def multiply_experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Tensor | PackedExperts,
    down: Tensor | PackedExperts,
    *,
    activation: str = "silu",
    alpha: float = ALPHA,
    limit: float = math.inf,
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> Tensor:
    """Sum over the chosen experts e, in the order of the choice, of
    weight * down_e(act(gate_e(x), up_e(x))).

    Args:
        x: [num_rows, hidden_size].
        ids, weights: [num_rows, top_k].
        gate_up: [num_experts, 2 * intermediate_size, hidden_size], the gate's rows first.
        down: [num_experts, out_size, intermediate_size].
        activation, alpha, limit: as in `taco_kernels.reference.activation.act_mul`.
        gate_up_bias, down_bias: [num_experts, rows of the matrix].

    Returns:
        float32 [num_rows, out_size].
    """
    outputs = torch.empty(*ids.shape, down.shape[1], device=x.device)
    for expert in ids.unique().tolist():
        rows, ranks = (ids == expert).nonzero(as_tuple=True)
        both = _linear(x[rows], gate_up, gate_up_bias, expert)
        inner = act_mul(both, activation, alpha=alpha, limit=limit)
        outputs[rows, ranks] = _linear(inner, down, down_bias, expert)
    total = torch.zeros(x.shape[0], down.shape[1], device=x.device)
    for rank in range(ids.shape[1]):
        total = total + weights[:, rank, None].float() * outputs[:, rank]
    return total


def _linear(x: Tensor, weight: Tensor | PackedExperts, bias: Tensor | None, expert: int) -> Tensor:
    return F.linear(
        x.float(), weight[expert].float(), None if bias is None else bias[expert].float()
    )


def multiply_experts_grouped(
    x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor
) -> Tensor:
    """The same with SwiGLU and no biases, by torch's grouped product: no host synchronization.

    Args:
        x, gate_up, down: of a dtype that `torch._grouped_mm` multiplies on their device.

    Returns:
        [num_rows, out_size] in x's dtype, the sums in float32.
    """
    num_rows, top_k = ids.shape
    experts, order = ids.flatten().sort(stable=True)
    numbers = torch.arange(gate_up.shape[0], device=x.device)
    ends = torch.searchsorted(experts, numbers, right=True).int()
    both = torch._grouped_mm(x[order // top_k], gate_up.mT, offs=ends)
    gate, up = both.chunk(2, dim=1)
    outputs = torch._grouped_mm(F.silu(gate) * up, down.mT, offs=ends)
    in_order = torch.empty_like(outputs, dtype=torch.float32)
    in_order[order] = outputs.float()
    total = (in_order.view(num_rows, top_k, -1) * weights[:, :, None]).sum(1)
    return total.to(x.dtype)
