"""Configurations in other formats, nested configurations, and overrides."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taco_worker.models.config import load_hf_config
from taco_worker.models.config_reading import config_file, read_hf_config
from taco_worker.models.plan.model_plan import ModelPlan, RopeTable
from taco_worker.models.plan.ops.attend import Attend
from taco_worker.models.rope import PositionGrowth, YarnScaling

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
    "eos_token_id": 2,
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
LENGTH = "original_max_position_embeddings"
GROWTH = {"beta": 0.1, LENGTH: 16384}
# params.json files of published models.
NEMO = {
    "dim": 5120,
    "n_layers": 40,
    "head_dim": 128,
    "hidden_dim": 14336,
    "n_heads": 32,
    "n_kv_heads": 8,
    "rope_theta": 1000000.0,
    "norm_eps": 1e-5,
    "vocab_size": 131072,
}
MINISTRAL_8B = NEMO | {
    "dim": 4096,
    "n_layers": 36,
    "hidden_dim": 12288,
    "rope_theta": 1e8,
    "sliding_window": [None, 32768, 32768, 32768],
}
MINISTRAL_3_8B = NEMO | {
    "dim": 4096,
    "n_layers": 34,
    "max_position_embeddings": 262144,
    "llama_4_scaling": GROWTH,
    "yarn": {LENGTH: 16384, "factor": 16, "apply_scale": False, "beta": 32, "alpha": 1},
}


def windows_of(plan: ModelPlan) -> list[int | None]:
    return [op.window for op in plan.ops if isinstance(op, Attend)]


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


def test_published_params_json_without_a_window_has_none(tmp_path: Path) -> None:
    write(tmp_path, "params.json", **NEMO)
    config = load_hf_config(tmp_path)
    assert windows_of(config.plan) == [None] * 40
    assert config.eos_token_ids == (2,)


def test_published_params_json_with_a_list_of_windows(tmp_path: Path) -> None:
    write(tmp_path, "params.json", **MINISTRAL_8B)
    plan = load_hf_config(tmp_path).plan
    assert windows_of(plan) == [None, 32768, 32768, 32768] * 9
    assert round(plan.num_elements / 1e9, 2) == 8.02


def test_published_params_json_of_ministral_3_means_its_config_json(tmp_path: Path) -> None:
    write(tmp_path, "params.json", **MINISTRAL_3_8B)
    actual = load_hf_config(tmp_path)
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1000000.0,
        "factor": 16.0,
        LENGTH: 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34}
    sizes |= {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    sizes |= {"vocab_size": 131072, "max_position_embeddings": 262144}
    names = {"architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3"}
    fields = FIELDS | sizes | names | {"rope_parameters": rope, "sliding_window": None}
    expected = load_hf_config(write(tmp_path, **fields)).plan
    growths = {name: table.growth for name, table in actual.plan.rope_tables.items()}
    assert growths == {"rope": None, "query_rope": PositionGrowth(0.1, 16384)}
    tables = {
        name: replace(table, rotary=replace(table.rotary, scaling=_without_scores(table)))
        for name, table in expected.rope_tables.items()
    }
    assert actual.plan == replace(expected, rope_tables=tables)


def _without_scores(table: RopeTable) -> YarnScaling:
    """Without the weight that only DeepSeek's recipe reads."""
    scaling = table.rotary.scaling
    assert isinstance(scaling, YarnScaling)
    return replace(scaling, mscale_all_dim=0.0)


@pytest.mark.parametrize(("window", "theta"), [(4096, 10_000.0), (None, 1_000_000.0)])
def test_theta_of_params_json_without_it(tmp_path: Path, window: int | None, theta: float) -> None:
    """The first Mistral 7B had a window and no theta; mistral-inference chooses so."""
    params = {k: v for k, v in PARAMS.items() if k != "rope_theta"} | {"sliding_window": window}
    write(tmp_path, "params.json", **params)
    assert load_hf_config(tmp_path).plan.rope_tables["rope"].rotary.theta == theta


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
    ("quantization", "method"),
    [
        ({"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}, "fp8"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "compressed-tensors"),
    ],
)
def test_params_json_of_quantized_weights(
    tmp_path: Path, quantization: dict[str, Any], method: str
) -> None:
    write(tmp_path, "params.json", **PARAMS, quantization=quantization)
    fields = read_hf_config(tmp_path / "params.json")
    assert fields["quantization_config"]["quant_method"] == method


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"moe": {"num_shared_experts": 1}}, "experts of this kind are not supported"),
        ({"yarn": 3}, "yarn is not an object"),
        ({"sliding_window": [512, 128]}, "sliding_window .* is not supported"),
        ({"quantization": {"qformat_weight": "int4"}}, "quantization .* is not supported"),
        ({"dim": "wide"}, "hidden_size must be a positive integer"),
        ({"llama_4_scaling": 3}, "llama_4_scaling needs beta"),
        ({"llama_4_scaling": GROWTH, "yarn": {"factor": 4, LENGTH: 512}}, "is not supported with"),
        ({"llama_4_scaling": GROWTH, "moe": {"num_experts": 8}}, "is not supported with experts"),
        ({"moe": {"num_experts": 8}, "sliding_window": [512, None]}, "sliding_window .* is not"),
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


def test_without_its_sliding_window_a_model_is_as_long_as_the_window(tmp_path: Path) -> None:
    write(tmp_path, **FIELDS)
    limited = load_hf_config(tmp_path, disable_sliding_window=True)
    assert limited.plan.max_position_embeddings == 512
    longer = replace(limited.plan, max_position_embeddings=2048)
    assert replace(limited, plan=longer) == load_hf_config(tmp_path)
    for window in (None, 4096):
        write(tmp_path, **FIELDS | {"sliding_window": window})
        assert load_hf_config(tmp_path, disable_sliding_window=True) == load_hf_config(tmp_path)


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}, 2048),
        ({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}, 2048),
        (
            {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}
            | {"max_window_layers": 1},
            512,
        ),
        ({"architectures": ["LlamaForCausalLM"]}, 2048),  # which ignores the field
        ({"architectures": ["MistralForCausalLM"], "max_position_embeddings": 8192}, 512),
    ],
)
def test_only_windows_of_the_plan_limit_its_length(
    tmp_path: Path, fields: dict[str, Any], length: int
) -> None:
    write(tmp_path, **FIELDS | fields)
    limited = load_hf_config(tmp_path, disable_sliding_window=True)
    assert limited.plan.max_position_embeddings == length


def test_auto_prefers_config_json(tmp_path: Path) -> None:
    assert config_file(tmp_path).name == "config.json"
    write(tmp_path, "params.json")
    assert config_file(tmp_path).name == "params.json"
    write(tmp_path)
    assert config_file(tmp_path).name == "config.json"
