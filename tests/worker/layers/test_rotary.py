"""Tables of rotary positions against transformers' models."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import (
    Cohere2Config,
    DeepseekV3Config,
    Gemma3TextConfig,
    LlamaConfig,
    Phi3Config,
    PhimoeConfig,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding
from transformers.models.phimoe.modeling_phimoe import PhimoeRotaryEmbedding

from taco_worker.layers.rotary import attention_factor, cos_sin_table, inverse_frequencies
from taco_worker.models.rope import (
    DynamicScaling,
    LongScaling,
    RotaryConfig,
    YarnScaling,
    scaled_max_position_embeddings,
)
from taco_worker.models.rope_parsing import parse_layer_rotary, parse_rotary

CPU = torch.device("cpu")
SHORT = [1.0 + 0.02 * i for i in range(24)]
LONG = [1.5 + 0.5 * i for i in range(24)]


def test_angles() -> None:
    table = cos_sin_table(RotaryConfig(100.0), 4, 4, CPU)
    angles = torch.tensor([3.0, 0.3])
    torch.testing.assert_close(table[3], torch.cat((angles.cos(), angles.sin())))
    torch.testing.assert_close(table[0], torch.tensor([1.0, 1.0, 0.0, 0.0]))


@pytest.mark.parametrize("partial", [1.0, 0.25, 0.375])
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
        {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 4096},
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
        {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 4096,
            "mscale": 0.7,
            "mscale_all_dim": 0,
        },
        {
            "rope_type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 4096,
            "attention_factor": 1.3,
        },
    ],
    ids=str,
)
def test_frequencies_at_published_sizes(parameters: dict[str, Any], partial: float) -> None:
    theta = 1_000_000.0
    hf_config = LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": theta, "partial_rotary_factor": partial, **parameters},
    )
    rotary = parse_rotary(hf_config.to_dict())
    rotary_dim = rotary.rotary_dim(128)
    assert rotary_dim == 128 * partial
    frequencies = inverse_frequencies(rotary, rotary_dim, 131072)
    if parameters["rope_type"] == "default":
        expected, amplitude = theta ** (-torch.arange(0, rotary_dim, 2) / rotary_dim), 1.0
    else:
        expected, amplitude = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](hf_config, CPU)
    torch.testing.assert_close(frequencies, expected, rtol=1e-5, atol=0)
    assert math.isclose(attention_factor(rotary, 131072), amplitude)


def test_a_part_of_whole_head_frequencies() -> None:
    hf_config = LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        rope_parameters={
            "rope_type": "proportional",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.25,
        },
    )
    rotary = parse_rotary(hf_config.to_dict())
    expected, _ = ROPE_INIT_FUNCTIONS["proportional"](hf_config, CPU)
    assert rotary.rotary_dim(128) == 128
    frequencies = inverse_frequencies(rotary, 128, 4096)
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert torch.count_nonzero(frequencies) == 16


def test_dynamic_scaling_is_fixed_at_the_longest_length() -> None:
    hf_config = LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "dynamic", "factor": 2.5, "rope_theta": 1e4},
    )
    rotary = parse_rotary(hf_config.to_dict())
    assert isinstance(rotary.scaling, DynamicScaling)
    longest = scaled_max_position_embeddings(rotary, 2048)
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](hf_config, CPU, seq_len=longest)
    torch.testing.assert_close(inverse_frequencies(rotary, 128, longest), expected)


@pytest.mark.parametrize("length", [100, 2048, 2049, 3000])
def test_dynamic_scaling_follows_the_served_length(length: int) -> None:
    hf_config = LlamaConfig(
        hidden_size=512,
        num_attention_heads=4,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "dynamic", "factor": 2.5, "rope_theta": 1e4},
    )
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](hf_config, CPU, seq_len=length)
    rotary = parse_rotary(hf_config.to_dict())
    torch.testing.assert_close(inverse_frequencies(rotary, 128, length), expected)


def _phi3(**fields: Any) -> Phi3Config:
    return Phi3Config(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=400,
        original_max_position_embeddings=100,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.75,
            "short_factor": SHORT,
            "long_factor": LONG,
        },
        **fields,
    )


@pytest.mark.parametrize("length", [90, 100, 101, 400])
def test_long_factors_are_chosen_by_the_served_length_as_in_phi3(length: int) -> None:
    """A sequence of the served length has transformers' angles."""
    hf_config = _phi3()
    rotary = parse_rotary(hf_config.to_dict())
    assert isinstance(rotary.scaling, LongScaling)
    assert rotary.scaling.is_long(length) == (length > 100)
    assert scaled_max_position_embeddings(rotary, 400) == 400
    table = cos_sin_table(rotary, rotary.rotary_dim(64), length, CPU)
    cos, sin = Phi3RotaryEmbedding(hf_config)(torch.ones(1), torch.arange(length)[None])
    torch.testing.assert_close(table, torch.cat((cos[0, :, :24], sin[0, :, :24]), dim=1))


def test_positions_past_the_served_length_keep_its_factors() -> None:
    """Draft tokens reach beyond, and their keys must fit to the others'."""
    rotary = parse_rotary(_phi3().to_dict())
    longer = cos_sin_table(rotary, 48, 110, CPU, max_length=100)
    assert torch.equal(longer[:100], cos_sin_table(rotary, 48, 100, CPU))


@pytest.mark.parametrize("length", [90, 101])
def test_long_and_short_amplitudes_of_phimoe(length: int) -> None:
    hf_config = PhimoeConfig(
        hidden_size=192,
        num_attention_heads=4,
        max_position_embeddings=400,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": SHORT,
            "long_factor": SHORT,
            "short_mscale": 1.1,
            "long_mscale": 1.4,
            "original_max_position_embeddings": 100,
        },
    )
    rotary = parse_rotary(hf_config.to_dict())
    table = cos_sin_table(rotary, 48, length, CPU)
    cos, _ = PhimoeRotaryEmbedding(hf_config)(torch.ones(1), torch.arange(length)[None])
    torch.testing.assert_close(table[:, :24], cos[0, :, :24])


@pytest.mark.parametrize("old", [False, True])
def test_local_and_global_layers_of_gemma3(old: bool) -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    hf_config = Gemma3TextConfig(
        head_dim=64,
        rope_parameters={
            "full_attention": {"rope_theta": 1e6, **scaling},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        },
    )
    fields = hf_config.to_dict()
    if old:
        old_fields = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": scaling}
        fields = {k: v for k, v in fields.items() if k != "rope_parameters"} | old_fields
    tables = parse_layer_rotary(
        fields,
        set(fields["layer_types"]),
        unscaled={"sliding_attention": fields.get("rope_local_base_freq", 1e4)},
    )
    embedding = Gemma3RotaryEmbedding(hf_config)
    for layer_type, rotary in tables.items():
        assert rotary is not None
        cos, sin = embedding(torch.ones(1), torch.arange(30)[None], layer_type)
        table = cos_sin_table(rotary, 64, 30, CPU)
        torch.testing.assert_close(table, torch.cat((cos[0, :, :32], sin[0, :, :32]), dim=1))


def test_amplitude_of_attention_scores_in_deepseek() -> None:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

    hf_config = DeepseekV3Config(
        hidden_size=64,
        num_attention_heads=2,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        max_position_embeddings=163840,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 40.0,
            "mscale": 1.0,
            "mscale_all_dim": 0.8,
            "original_max_position_embeddings": 4096,
        },
    )
    rotary = parse_rotary(hf_config.to_dict())
    assert isinstance(rotary.scaling, YarnScaling)
    expected = DeepseekV3Attention(hf_config, 0).scaling
    assert math.isclose(24**-0.5 * rotary.scaling.score_factor, expected)
    expected, amplitude = ROPE_INIT_FUNCTIONS["yarn"](hf_config, CPU)
    torch.testing.assert_close(inverse_frequencies(rotary, 8, 163840), expected)
    assert math.isclose(attention_factor(rotary, 163840), amplitude)
    without = YarnScaling(40.0, 32, 1, 1.0, True, 4096)
    assert without.score_factor == 1.0


def test_a_saved_config_of_one_kind_gives_all_layer_types_the_same() -> None:
    fields = Cohere2Config(rope_parameters={"rope_type": "default", "rope_theta": 5e4}).to_dict()
    types = ("full_attention", "sliding_attention")
    assert parse_layer_rotary(fields, types) == dict.fromkeys(types, RotaryConfig(5e4))
