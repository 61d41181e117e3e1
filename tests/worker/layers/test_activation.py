from __future__ import annotations

import pytest
import torch
import transformers

from taco_worker.layers.activation import find_activation


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
def test_activations_by_name(name: str) -> None:
    x = torch.linspace(-6, 6, 101)
    expected = transformers.activations.ACT2FN[name](x)
    torch.testing.assert_close(find_activation(name)(x), expected)


def test_unknown_activation_is_named() -> None:
    with pytest.raises(ValueError, match="unknown activation 'swish9000'; known: gelu, "):
        find_activation("swish9000")
