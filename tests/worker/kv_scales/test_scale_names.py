"""Names of scales in published checkpoints."""

import pytest

from taco_worker.kv_scales.scale_names import ScaleName, belongs_to_kv_cache, scale_of


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.layers.3.self_attn.k_scale", ScaleName(3, "key")),
        ("model.layers.3.self_attn.v_scale", ScaleName(3, "value")),
        ("model.layers.12.self_attn.attn.k_scale", ScaleName(12, "key")),
        ("model.layers.0.self_attn.k_proj.k_scale", ScaleName(0, "key")),
        ("model.layers.0.self_attn.v_proj.v_scale", ScaleName(0, "value")),
        ("model.layers.0.self_attn.kv_scale", ScaleName(0, "both")),
        ("model.layers.1.self_attn.k_proj.output_scale", ScaleName(1, "key")),
        ("model.decoder.layers.1.self_attn.v_proj.output_scale", ScaleName(1, "value")),
        ("language_model.model.layers.7.self_attn.k_scale", ScaleName(7, "key")),
        ("transformer.h.2.attn.v_scale", ScaleName(2, "value")),
        ("model.layers.3.self_attn.mla_attn.k_scale", ScaleName(3, "key")),
    ],
)
def test_scales(name: str, expected: ScaleName) -> None:
    assert scale_of(name) == expected
    assert belongs_to_kv_cache(name)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_scale",
        "model.layers.0.self_attn.attn.prob_scale",
        "model.layers.0.self_attn.prob_output_scale",
        "model.layers.0.self_attn.q_proj.output_scale",
        "model.layers.0.self_attn.k_zero_point",
    ],
)
def test_what_comes_with_them(name: str) -> None:
    assert scale_of(name) is None
    assert belongs_to_kv_cache(name)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.k_proj.weight_scale",
        "model.layers.0.self_attn.k_proj.input_scale",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.mlp.down_proj.k_scale",
        "model.layers.0.mlp.down_proj.output_scale",
        "k_scale",
        "model.layers.x.self_attn.k_scale",
    ],
)
def test_other_tensors(name: str) -> None:
    assert not belongs_to_kv_cache(name)
