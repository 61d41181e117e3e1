"""The activation references against transformers and the published formulas."""

from __future__ import annotations

import pytest
import torch
from transformers.activations import ACT2FN
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from taco_kernels.reference.activation import ACTIVATIONS, act_mul, activate

NAMES = {"gelu_tanh": "gelu_new"}


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_plain_and_gated_are_those_of_transformers(kind: str) -> None:
    x = torch.linspace(-6, 6, 102).view(3, -1)
    expected = ACT2FN[NAMES.get(kind, kind)](x)
    torch.testing.assert_close(activate(x, kind), expected)
    gate, up = x.chunk(2, dim=-1)
    torch.testing.assert_close(act_mul(x, kind), activate(gate, kind) * up)


@pytest.mark.parametrize("limit", [7.0, 0.5])
def test_clipped_swiglu_is_that_of_gpt_oss(limit: float) -> None:
    gate_up = torch.randn(5, 12) * 6
    interleaved = torch.stack(gate_up.chunk(2, dim=-1), dim=-1).flatten(-2)
    experts = GptOssExperts.__new__(GptOssExperts)
    torch.nn.Module.__init__(experts)
    experts.limit, experts.alpha = limit, 1.702
    expected = experts._apply_gate(interleaved)
    torch.testing.assert_close(act_mul(gate_up, "swiglu_clipped", limit=limit), expected)


def test_without_a_limit_it_is_quick_geglu_with_a_shift() -> None:
    """Phi-3-small's gegelu: quick_gelu(gate) * (up + 1)."""
    gate_up = torch.randn(5, 12) * 6
    gate, up = gate_up.chunk(2, dim=-1)
    expected = gate * torch.sigmoid(1.702 * gate) * (up + 1)
    torch.testing.assert_close(act_mul(gate_up, "swiglu_clipped"), expected)


def test_unknown_kinds_are_named() -> None:
    with pytest.raises(ValueError, match="unknown activation 'mish'; known: relu, gelu, "):
        activate(torch.ones(2), "mish")
    with pytest.raises(ValueError, match="unknown activation 'swiglu_clipped'"):
        activate(torch.ones(2), "swiglu_clipped")
