from __future__ import annotations

import pytest
import torch
import transformers

from taco_worker.layers.activation import activate
from taco_worker.models.plan.ops.activation import ACTIVATIONS


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
def test_activations_by_name(name: str) -> None:
    x = torch.linspace(-6, 6, 101)
    expected = transformers.activations.ACT2FN[name](x)
    torch.testing.assert_close(activate(x, ACTIVATIONS[name]), expected)
