"""The reference of a mixture of experts against transformers and torch's grouped product."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.mixtral import modeling_mixtral

from taco_kernels.reference.experts import multiply_experts, multiply_experts_grouped

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_experts_agree_with_the_grouped_product_of_torch(dtype: torch.dtype) -> None:
    ids = torch.tensor([[0, 3], [3, 1], [0, 1], [3, 0]], dtype=torch.int32)
    x, weights = torch.randn(4, 64).to(dtype), torch.rand(4, 2)
    gate_up, down = torch.randn(5, 64, 64) / 8, torch.randn(5, 64, 32) / 6
    operands = (gate_up.to(dtype), down.to(dtype))
    wanted = multiply_experts(x, ids, weights, *operands)
    out = multiply_experts_grouped(x, ids, weights, *operands)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), wanted, atol=3e-2, rtol=3e-2)


def of_transformers(module: Any, name: str, **fields: float) -> torch.nn.Module:
    """Four experts [16, 24] of transformers with random weights."""
    config = getattr(module, f"{name}Config")(
        hidden_size=16, intermediate_size=24, num_local_experts=4, num_attention_heads=2, **fields
    )
    config._experts_implementation = "eager"
    experts: torch.nn.Module = getattr(module, f"{name}Experts")(config)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return experts.requires_grad_(False)


def test_experts_agree_with_mixtral() -> None:
    ids, weights = torch.tensor([[0, 3], [3, 1], [2, 0]]), torch.rand(3, 2)
    x, experts = torch.randn(3, 16) * 3, of_transformers(modeling_mixtral, "Mixtral")
    matrices = dict(experts.named_parameters())
    out = multiply_experts(x, ids, weights, matrices["gate_up_proj"], matrices["down_proj"])
    torch.testing.assert_close(out, experts(x, ids, weights), atol=1e-5, rtol=1e-5)


def test_experts_agree_with_gpt_oss() -> None:
    """A clipped gate, biases; gate and up are stored as [in, out] with their columns in turn."""
    ids, weights = torch.tensor([[0, 3], [3, 1], [2, 0]]), torch.rand(3, 2)
    x, experts = torch.randn(3, 16), of_transformers(modeling_gpt_oss, "GptOss", swiglu_limit=1.5)
    stored = dict(experts.named_parameters())
    gate_up, bias = stored["gate_up_proj"].mT, stored["gate_up_proj_bias"]
    out = multiply_experts(
        x,
        ids,
        weights,
        torch.cat((gate_up[:, ::2], gate_up[:, 1::2]), dim=1),
        stored["down_proj"].mT,
        activation="swiglu_clipped",
        limit=1.5,
        gate_up_bias=torch.cat((bias[:, ::2], bias[:, 1::2]), dim=1),
        down_bias=stored["down_proj_bias"],
    )
    torch.testing.assert_close(out, experts(x, ids, weights), atol=1e-5, rtol=1e-5)
