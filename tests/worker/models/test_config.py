"""config.json and generation_config.json, in old and new formats."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from support.checkpoints import make_checkpoint
from taco_worker.models.config import load_hf_config
from taco_worker.models.dtypes import resolve_dtype, resolve_kv_dtype
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.attend import Attend
from taco_worker.models.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    RotaryConfig,
    YarnScaling,
)

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


def _write(path: Path, **fields: Any) -> Path:
    (path / "config.json").write_text(json.dumps({**LLAMA, **fields}))
    return path


def _plan(path: Path, **fields: Any) -> ModelPlan:
    return load_hf_config(_write(path, **fields)).plan


def _rotary(plan: ModelPlan) -> RotaryConfig:
    (table,) = plan.rope_tables.values()
    return table.rotary


def _windows(plan: ModelPlan) -> tuple[int | None, ...]:
    return tuple(op.window for op in plan.ops if isinstance(op, Attend))


def test_old_and_new_form_agree(tmp_path: Path) -> None:
    old = load_hf_config(
        _write(
            tmp_path,
            rope_theta=500000.0,
            rope_scaling={"rope_type": "llama3", **LLAMA3},
            torch_dtype="bfloat16",
        )
    )
    new = load_hf_config(
        _write(
            tmp_path,
            rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3},
            dtype="bfloat16",
        )
    )
    assert old == new
    assert new.checkpoint_dtype == "bfloat16"
    assert _rotary(new.plan) == RotaryConfig(500000.0, Llama3Scaling(8.0, 1.0, 4.0, 256))


def test_defaults_of_old_llama(tmp_path: Path) -> None:
    plan = _plan(tmp_path)
    assert {(entry.num_heads, entry.key_dim) for entry in plan.kv_entries} == {(4, 16)}
    assert _rotary(plan) == RotaryConfig(10000.0)
    assert not plan.has_tied_head


@pytest.mark.parametrize(
    ("scaling", "expected", "length"),
    [
        ({"type": "linear", "factor": 4}, LinearScaling(4.0), 8192),
        ({"type": "dynamic", "factor": 2.5}, DynamicScaling(2.5, 2048), 5120),
        ({"rope_type": "llama3", **LLAMA3}, Llama3Scaling(8.0, 1.0, 4.0, 256), 2048),
        (
            {
                "type": "yarn",
                "factor": 4.0,
                "attention_factor": 1.5,
                "original_max_position_embeddings": 1024,
            },
            YarnScaling(4.0, 32.0, 1.0, 1.5, True, 1024),
            4096,
        ),
        ({"rope_type": "default"}, None, 2048),
    ],
)
def test_rope_scaling_override(
    tmp_path: Path, scaling: dict[str, Any], expected: Any, length: int
) -> None:
    in_file = {"rope_type": "linear", "factor": 16.0, "rope_theta": 77.0}
    for path_fields in ({"rope_parameters": in_file}, {"rope_scaling": in_file, "rope_theta": 77}):
        path = _write(tmp_path, **path_fields)
        plan = load_hf_config(path, rope_scaling=scaling).plan
        assert _rotary(plan) == RotaryConfig(77.0, expected)
        assert plan.max_position_embeddings == length


def test_rope_theta_override_keeps_the_scaling(tmp_path: Path) -> None:
    for fields in (
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5.0}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
    ):
        plan = load_hf_config(_write(tmp_path, **fields), rope_theta=1e6).plan
        assert _rotary(plan) == RotaryConfig(1e6, LinearScaling(2.0))


def test_an_empty_override_keeps_the_scaling(tmp_path: Path) -> None:
    path = _write(tmp_path, rope_scaling={"type": "linear", "factor": 2.0}, rope_theta=5.0)
    for theta, expected in ((None, 5.0), (7.0, 7.0)):
        plan = load_hf_config(path, rope_scaling={}, rope_theta=theta).plan
        assert _rotary(plan) == RotaryConfig(expected, LinearScaling(2.0))


def test_settings_by_both_names(tmp_path: Path) -> None:
    """transformers prefers one of them, other software the other."""
    fields = {
        "rope_scaling": {"type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5.0},
    }
    path = _write(tmp_path, **fields)
    for theta in (None, 1e6):
        with pytest.raises(ValueError, match="rope_scaling and rope_parameters differ in factor:"):
            load_hf_config(path, rope_theta=theta)
    plan = load_hf_config(path, hf_overrides={"rope_scaling": None}).plan
    assert _rotary(plan) == RotaryConfig(5.0, LinearScaling(4.0))
    plan = load_hf_config(path, rope_scaling={"type": "linear", "factor": 8.0}).plan
    assert _rotary(plan) == RotaryConfig(5.0, LinearScaling(8.0))


def test_theta_inside_the_scaling_override(tmp_path: Path) -> None:
    path = _write(tmp_path, rope_theta=5.0)
    scaling = {"rope_type": "linear", "factor": 2.0, "rope_theta": 9.0}
    for override, theta in ((None, 9.0), (11.0, 11.0)):
        plan = load_hf_config(path, rope_scaling=scaling, rope_theta=override).plan
        assert _rotary(plan) == RotaryConfig(theta, LinearScaling(2.0))


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"type": "spiral"}, "unknown rope scaling 'spiral'"),
        ({"factor": 8.0}, "rope_scaling needs a rope_type .* got only 'factor'"),
        ({"rope_theta": 1e6}, "rope_scaling needs a rope_type .* got only 'rope_theta'"),
        ({"type": None}, "rope_scaling needs a rope_type"),
        ({"type": "linear"}, "'linear' needs a positive 'factor', not None"),
        ({"type": "linear", "factor": -1}, "not -1"),
        ({"type": "linear", "factor": "8"}, "not '8'"),
        ({"rope_type": "llama3", **LLAMA3, "high_freq_factor": 0.5}, "low_freq_factor 1.0 <"),
    ],
)
def test_bad_rope_scaling(tmp_path: Path, scaling: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_hf_config(_write(tmp_path), rope_scaling=scaling)


def test_rope_override_of_settings_by_layer_type(tmp_path: Path) -> None:
    path = _write(tmp_path, rope_parameters={"full_attention": {"rope_theta": 1e4}})
    with pytest.raises(ValueError, match="by layer type cannot be overridden"):
        load_hf_config(path, rope_theta=1e6)


def test_rope_settings_on_learned_positions(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "GPT2LMHeadModel")
    with pytest.raises(ValueError, match="GPT2LMHeadModel has no rotary positions"):
        load_hf_config(path, rope_theta=1e6)


def test_qwen2_windows_with_and_without_layer_types(tmp_path: Path) -> None:
    fields = {
        "architectures": ["Qwen2ForCausalLM"],
        "num_key_value_heads": 4,
        "use_sliding_window": True,
        "sliding_window": 32,
        "max_window_layers": 1,
    }
    assert _windows(_plan(tmp_path, **fields)) == (None, 32)
    layer_types = ["sliding_attention", "full_attention"]
    assert _windows(_plan(tmp_path, **fields, layer_types=layer_types)) == (32, None)
    unused = {**fields, "use_sliding_window": False}
    assert _windows(_plan(tmp_path, **unused)) == (None, None)


def test_end_tokens_of_both_files(tmp_path: Path) -> None:
    path = _write(tmp_path, eos_token_id=7)
    assert load_hf_config(path).eos_token_ids == (7,)
    (path / "generation_config.json").write_text('{"eos_token_id": [9, 7, 8]}')
    assert load_hf_config(path).eos_token_ids == (9, 7, 8)
    (path / "generation_config.json").write_text('{"eos_token_id": 5}')
    assert load_hf_config(path).eos_token_ids == (5, 7)
    for none in (None, -1):
        assert load_hf_config(_write(tmp_path, eos_token_id=none)).eos_token_ids == (5,)


def test_sampling_defaults(tmp_path: Path) -> None:
    path = _write(tmp_path)
    assert load_hf_config(path).sampling_defaults == {}
    generation = {"temperature": 0.7, "top_k": 20, "top_p": None, "do_sample": True}
    (path / "generation_config.json").write_text(json.dumps(generation))
    assert load_hf_config(path).sampling_defaults == {"temperature": 0.7, "top_k": 20}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "is not a JSON object"),
        ("{}", r"architecture \(config.json names none\) is not supported"),
        (
            '{"architectures": ["Qwen4ExpForCausalLM"]}',
            "similar names: Qwen3NextForCausalLM, QWenLMHeadModel, Qwen3MoeForCausalLM; docs/",
        ),
        (
            '{"architectures": ["DiffLlamaForCausalLM"]}',
            r"DiffLlamaForCausalLM is not supported; similar names: Llama.*, Mllama.*; docs.* \d+ "
            "that are$",
        ),
        ('{"architectures": ["LlamaForCausalLM"]}', "has no 'intermediate_size'"),
    ],
)
def test_bad_config(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_hf_config(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": "64"}, "hidden_size must be a positive integer, not '64'"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
        ({"head_dim": 15}, "even rotary_dim of 2 or more, not 15"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"quantization_config": {"quant_method": "none-such"}}, r"quantized \(none-such\)"),
        ({"quantization_config": "gptq"}, "quantization_config must be an object"),
        (
            {
                "architectures": ["MistralForCausalLM"],
                "num_key_value_heads": 4,
                "hidden_size": None,
            },
            "hidden_size must be a positive integer, not None",
        ),
        ({"architectures": 7}, "architectures must be a list of names, not 7"),
        ({"rope_parameters": "linear"}, "rope_parameters must be an object"),
        ({"eos_token_id": {}}, "eos_token_id must be one or more integers"),
        ({"vocab_size": None}, "vocab_size must be a positive integer, not None"),
        ({"intermediate_size": -1}, "intermediate_size must be a positive integer, not -1"),
        ({"max_position_embeddings": 1.5}, "max_position_embeddings must be a positive integer"),
    ],
)
def test_unusable_fields(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_hf_config(_write(tmp_path, **fields))


@pytest.mark.parametrize("value", ["hot", [], {}])
def test_a_sampling_default_that_is_no_number(tmp_path: Path, value: object) -> None:
    path = _write(tmp_path)
    (path / "generation_config.json").write_text(json.dumps({"temperature": value}))
    with pytest.raises(ValueError, match=r"invalid field|could not convert"):
        load_hf_config(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*config.json: No such file"):
        load_hf_config(tmp_path)


def test_dtype_names() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert resolve_dtype("auto", "bfloat16", cpu) == torch.bfloat16
    assert resolve_dtype("auto", "float16", cpu) == torch.bfloat16
    assert resolve_dtype("auto", "float16", cuda) == torch.float16
    assert resolve_dtype("auto", "torch.float32", cpu) == torch.float32
    assert resolve_dtype("auto", None, cuda) == torch.float32
    assert resolve_dtype("half", "bfloat16", cuda) == torch.float16
    assert resolve_dtype("float", "bfloat16", cpu) == torch.float32
    with pytest.raises(ValueError, match="unknown dtype 'int8'"):
        resolve_dtype("int8", None, cpu)
    with pytest.raises(ValueError, match="unknown dtype 'float64'"):
        resolve_dtype("auto", "float64", cpu)
    assert resolve_dtype("half", "bfloat16", cpu) == torch.float32


def test_kv_dtype_names() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert resolve_kv_dtype("auto", torch.float32, cpu) == torch.float32
    assert resolve_kv_dtype("int8", torch.bfloat16, cpu) == torch.int8
    assert resolve_kv_dtype("bfloat16", torch.float32, cpu) == torch.bfloat16
    assert resolve_kv_dtype("auto", torch.float16, cuda) == torch.float16
    assert resolve_kv_dtype("fp8", torch.bfloat16, cuda) == torch.float8_e4m3fn
    assert resolve_kv_dtype("fp8", torch.bfloat16, cpu) == torch.float8_e4m3fn
    assert resolve_kv_dtype("fp8_e5m2", torch.bfloat16, cpu) == torch.float8_e5m2
    with pytest.raises(ValueError, match="unknown kv_cache_dtype 'fp4'; known on this device: au"):
        resolve_kv_dtype("fp4", torch.bfloat16, cpu)
    assert resolve_kv_dtype("int8", torch.bfloat16, cuda) == torch.int8
    assert resolve_kv_dtype("bfloat16", torch.bfloat16, cuda) == torch.bfloat16
    with pytest.raises(ValueError, match="unknown kv_cache_dtype 'float32'"):
        resolve_kv_dtype("float32", torch.bfloat16, cuda)


def test_models_load_without_transformers(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path)
    program = (
        "import sys, torch; sys.modules['transformers'] = None\n"
        "from taco_proto.config import ModelConfig, WorkerConfig\n"
        "from taco_worker.backends.model_loading import load_step_model\n"
        "from taco_worker.devices.transfers import Transfers\n"
        f"config = WorkerConfig(model=ModelConfig(model={str(path)!r}))\n"
        "load_step_model(config, None, Transfers(torch.device('cpu')))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
