from __future__ import annotations

import math

import pytest
import torch
import transformers

from taco_worker.layers.activation import find_activation
from taco_worker.layers.rotary import RotaryEmbedding, inverse_frequencies
from taco_worker.models.rope import RotaryConfig, YarnScaling, parse_rotary


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
def test_activations_by_name(name: str) -> None:
    x = torch.linspace(-6, 6, 101)
    expected = transformers.activations.ACT2FN[name](x)
    torch.testing.assert_close(find_activation(name)(x), expected)


def test_unknown_activation_is_named() -> None:
    with pytest.raises(ValueError, match="unknown activation 'swish9000'; known: gelu, "):
        find_activation("swish9000")


def test_rotary_angles() -> None:
    rotary = RotaryEmbedding(RotaryConfig(100.0), 4, torch.device("cpu"))
    cos, sin = rotary.cos_sin(torch.tensor([0, 3]))
    angles = torch.tensor([[0.0, 0.0], [3.0, 0.3]])
    torch.testing.assert_close(cos, angles.cos())
    torch.testing.assert_close(sin, angles.sin())


@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 3.0},
        {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 24,
            "beta_slow": 2,
            "mscale": 1.0,
            "mscale_all_dim": 0.7,
            "truncate": False,
        },
    ],
)
def test_frequencies_at_published_sizes(parameters: dict[str, float | str]) -> None:
    theta = 1_000_000.0
    hf_config = transformers.LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": theta, **parameters},
    )
    kind = str(parameters["rope_type"])
    rotary = parse_rotary(hf_config.to_dict())
    frequencies = inverse_frequencies(rotary, 128)
    if kind == "default":
        expected = theta ** (-torch.arange(0, 128, 2) / 128)
    else:
        compute = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[kind]
        expected, amplitude = compute(hf_config, torch.device("cpu"))
        if isinstance(rotary.scaling, YarnScaling):
            assert math.isclose(rotary.scaling.attention_factor, amplitude)
    torch.testing.assert_close(frequencies, expected, rtol=1e-5, atol=0)
