"""The activation names of config.json mean what transformers takes them for."""

from __future__ import annotations

import pytest
import torch
import transformers

from taco_worker.layers.torch_ops import TorchOps
from taco_worker.models.plan.ops.activation import ACTIVATIONS


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_by_name(name: str) -> None:
    x = torch.linspace(-6, 6, 102).view(1, -1)
    expected = transformers.activations.ACT2FN[name](x)
    torch.testing.assert_close(TorchOps().activate(x, ACTIVATIONS[name]), expected)
