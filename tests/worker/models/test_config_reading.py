"""Configurations in other formats, nested configurations, and overrides."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taco_worker.models.config import load_hf_config
from taco_worker.models.config_reading import config_file, read_hf_config, sliding_window_of

FIELDS: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "sliding_window": 512,
    "tie_word_embeddings": False,
}
PARAMS: dict[str, Any] = {
    "dim": 64,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "head_dim": 16,
    "hidden_dim": 128,
    "norm_eps": 1e-5,
    "vocab_size": 100,
    "rope_theta": 10000.0,
    "sliding_window": 512,
    "max_seq_len": 2048,
}


def write(directory: Path, name: str = "config.json", **fields: Any) -> Path:
    (directory / name).write_text(json.dumps(fields))
    return directory


def test_params_json_means_the_same_model(tmp_path: Path) -> None:
    write(tmp_path, **FIELDS)
    hf = load_hf_config(tmp_path)
    write(tmp_path, "params.json", **PARAMS)
    assert load_hf_config(tmp_path, config_format="mistral") == hf
    assert load_hf_config(tmp_path) == hf
    (tmp_path / "config.json").unlink()
    assert load_hf_config(tmp_path) == hf
    with pytest.raises(ValueError, match=r"cannot read .*config\.json: No such file"):
        load_hf_config(tmp_path, config_format="hf")


def test_params_json_without_a_length_has_vllms(tmp_path: Path) -> None:
    file = tmp_path / "params.json"
    write(tmp_path, "params.json", **{k: v for k, v in PARAMS.items() if k != "max_seq_len"})
    assert read_hf_config(file)["max_position_embeddings"] == 128_000


def test_params_json_with_yarn_and_a_window_per_layer(tmp_path: Path) -> None:
    file = tmp_path / "params.json"
    yarn = {"factor": 4, "original_max_position_embeddings": 512, "beta": 32, "alpha": 1}
    windows = [512, None]
    write(tmp_path, "params.json", **PARAMS | {"yarn": yarn, "sliding_window": windows})
    fields = read_hf_config(file)
    assert fields["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4,
        "original_max_position_embeddings": 512,
        "beta_fast": 32,
        "beta_slow": 1,
    }
    assert fields["layer_types"] == ["sliding_attention", "full_attention"]
    assert fields["sliding_window"] == 512
    yarn["apply_scale"] = False
    write(tmp_path, "params.json", **PARAMS | {"yarn": yarn})
    assert read_hf_config(file)["rope_scaling"]["attention_factor"] == 1.0


def test_params_json_with_experts(tmp_path: Path) -> None:
    moe = {"num_experts": 8, "num_experts_per_tok": 2}
    write(tmp_path, "params.json", **PARAMS, moe=moe)
    fields = read_hf_config(tmp_path / "params.json")
    assert fields["architectures"] == ["MixtralForCausalLM"]
    assert (fields["num_local_experts"], fields["num_experts_per_tok"]) == (8, 2)
    assert "moe" not in fields


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"moe": {"num_shared_experts": 1}}, "experts of this kind are not supported"),
        ({"yarn": 3}, "yarn is not an object"),
        ({"sliding_window": [512, 128]}, "sliding_window .* is not supported"),
        ({"quantization": {"qformat_weight": "fp8_e4m3"}}, "the checkpoint is quantized"),
        ({"dim": "wide"}, "hidden_size must be a positive integer"),
    ],
)
def test_params_json_that_is_not_supported(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    write(tmp_path, "params.json", **PARAMS | change)
    with pytest.raises(ValueError, match=message) as raised:
        load_hf_config(tmp_path)
    assert "\n" not in str(raised.value)


def test_overrides_are_merged_object_by_object(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "factor": 2.0}
    write(tmp_path, **FIELDS, rope_scaling=rope)
    overrides = {"rope_scaling": {"factor": 4.0}, "sliding_window": None, "new": {"a": 1}}
    fields = read_hf_config(tmp_path / "config.json", overrides)
    assert fields["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert fields["sliding_window"] is None
    assert fields["new"] == {"a": 1}
    assert fields["vocab_size"] == 100


def test_overrides_change_the_model(tmp_path: Path) -> None:
    write(tmp_path, **FIELDS)
    expected = load_hf_config(write(tmp_path, **FIELDS | {"num_hidden_layers": 1}))
    write(tmp_path, **FIELDS)
    assert load_hf_config(tmp_path, hf_overrides={"num_hidden_layers": 1}) == expected
    with pytest.raises(ValueError, match="num_hidden_layers is 100000"):
        load_hf_config(tmp_path, hf_overrides={"num_hidden_layers": 100000})


@pytest.mark.parametrize("has_name", [True, False])
def test_the_text_part_of_a_model_for_images_is_read(tmp_path: Path, has_name: bool) -> None:
    flat = load_hf_config(write(tmp_path, **FIELDS))
    text = dict(FIELDS) if has_name else {k: v for k, v in FIELDS.items() if k != "architectures"}
    outer: dict[str, Any] = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "text_config": text,
        "vision_config": {"hidden_size": 3},
    }
    write(tmp_path, **outer)
    assert load_hf_config(tmp_path) == flat
    one_layer = {"text_config": {"num_hidden_layers": 1}}
    expected = load_hf_config(tmp_path, hf_overrides={"num_hidden_layers": 1})
    assert load_hf_config(tmp_path, hf_overrides=one_layer) == expected != flat


def test_names_of_text_models_follow_their_type(tmp_path: Path) -> None:
    for model_type, name in (
        ("gemma3_text", "Gemma3ForCausalLM"),
        ("qwen3_moe", "Qwen3MoeForCausalLM"),
        ("ministral3", "Ministral3ForCausalLM"),
    ):
        write(tmp_path, architectures=["X"], text_config={"model_type": model_type})
        assert read_hf_config(tmp_path / "config.json")["architectures"] == [name, "X"]


def test_a_text_config_that_is_no_object(tmp_path: Path) -> None:
    write(tmp_path, architectures=["X"], text_config=[])
    with pytest.raises(ValueError, match="text_config is not an object"):
        load_hf_config(tmp_path)


@pytest.mark.parametrize(
    ("fields", "window"),
    [
        ({"model_type": "mistral", "sliding_window": 512}, 512),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "qwen2", "sliding_window": 512}, None),
        ({"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": True}, 512),
        ({"model_type": "gemma2", "sliding_window": 512}, 512),
        ({"model_type": "llama"}, None),
    ],
)
def test_windows_of_model_types(fields: dict[str, Any], window: int | None) -> None:
    assert sliding_window_of(fields) == window


def test_without_its_sliding_window_a_model_is_as_long_as_the_window(tmp_path: Path) -> None:
    write(tmp_path, **FIELDS)
    limited = load_hf_config(tmp_path, disable_sliding_window=True)
    assert limited.plan.max_position_embeddings == 512
    longer = replace(limited.plan, max_position_embeddings=2048)
    assert replace(limited, plan=longer) == load_hf_config(tmp_path)
    for window in (None, 4096):
        write(tmp_path, **FIELDS | {"sliding_window": window})
        assert load_hf_config(tmp_path, disable_sliding_window=True) == load_hf_config(tmp_path)


def test_auto_prefers_config_json(tmp_path: Path) -> None:
    assert config_file(tmp_path).name == "config.json"
    write(tmp_path, "params.json")
    assert config_file(tmp_path).name == "params.json"
    write(tmp_path)
    assert config_file(tmp_path).name == "config.json"
