"""The start line of `taco_llm serve`."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from support.checkpoints import make_checkpoint
from taco_llm.supervisor.start_line import device_label, model_label, start_line
from taco_worker.models.config import ModelConfig, load_hf_config
from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.registry import find_recipe
from taco_worker.models.step_model import describe
from taco_worker.quant.registry import read_online_quantization

pytestmark = pytest.mark.slow

URL = "http://localhost:8000/v1"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return load_hf_config(make_checkpoint(tmp_path_factory.mktemp("model")))


def of_size(model: ModelConfig, name: str, **fields: Any) -> ModelConfig:
    architecture, recipe = find_recipe([name])
    return replace(
        model, architecture=architecture, plan=recipe(ConfigFields(fields), architecture)
    )


def test_architecture_and_size(model: ModelConfig) -> None:
    qwen: dict[str, Any] = {"hidden_size": 896, "intermediate_size": 4864, "vocab_size": 151936}
    qwen |= {"num_attention_heads": 14, "num_key_value_heads": 2, "num_hidden_layers": 24}
    qwen |= {"max_position_embeddings": 32768, "tie_word_embeddings": True}
    assert model_label(of_size(model, "Qwen2ForCausalLM", **qwen)) == "Qwen2 0.5B"
    gpt2 = {"n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}
    assert model_label(of_size(model, "GPT2LMHeadModel", **gpt2)) == "GPT2 0.1B"


@pytest.mark.parametrize(
    ("description", "label"),
    [
        (describe("amx", 2, torch.bfloat16), "bf16 on AMX × 2"),
        (
            describe("avx512_bf16", 1, torch.int8),
            "int8 weights, 8-bit activations on AVX-512 BF16 × 1",
        ),
        (describe("torch", 8, torch.float32), "fp32 on torch × 8"),
        ("NVIDIA H100, bfloat16, attention by triton", "bf16 on NVIDIA H100"),
    ],
)
def test_device(description: str, label: str) -> None:
    assert device_label(description) == label


@pytest.mark.parametrize(
    ("details", "method", "label"),
    [
        ("bfloat16, int4 codes, int8 activations", "gptq", "GPTQ int4, 8-bit activations"),
        ("bfloat16, int4 codes, bfloat16 activations", "awq", "AWQ int4, bf16 activations"),
        (
            "bfloat16, int4/int8 codes, bfloat16/int8 activations",
            "gguf",
            "GGUF int4/int8, 8-bit and bf16 activations",
        ),
        ("bfloat16, e4m3 codes, bfloat16 activations", "fp8", "FP8 e4m3, bf16 activations"),
        (
            "bfloat16, table16 codes, int8 activations",
            "bitsandbytes",
            "bitsandbytes 4-bit, 8-bit activations",
        ),
        ("bfloat16, int4 codes, int8 activations", None, "int4 weights, 8-bit activations"),
        ("bfloat16, int8 codes, attention by triton", None, "int8 weights"),
        ("bfloat16", "aqlm", "bf16 from AQLM"),
        ("float32", "gptq", "fp32 from GPTQ"),
        ("int8", "gptq", "int8 weights, 8-bit activations"),
    ],
)
def test_weights(details: str, method: str | None, label: str) -> None:
    assert device_label(f"avx512, {details}", method) == f"{label} on AVX-512"


def test_the_whole_line(model: ModelConfig) -> None:
    worker = {
        "description": "amx, 2 threads, bfloat16", "kv_tokens": 262_144, "kv_dtype": "bfloat16"
    }  # fmt: skip
    one = str(start_line(model, [worker], URL, 2.345))
    assert one.startswith("TACO ")
    assert one.endswith(f" · bf16 on AMX × 2 · KV 262k tokens · {URL} · ready in 2.3 s")
    two = str(start_line(model, [worker, worker], URL, 2.0))
    assert " · 2 workers · KV 524k tokens · " in two
    online = replace(model, online_quantization=read_online_quantization("fp8"))
    coded = {**worker, "description": "amx, 2 threads, bfloat16, e4m3 codes, bfloat16 activations"}
    assert " · FP8 e4m3, bf16 activations on AMX × 2 · " in str(start_line(online, [coded], URL, 2))
    for dtype, name in (("int8", "int8"), ("float8_e4m3fn", "fp8 e4m3")):
        line = str(start_line(model, [{**worker, "kv_dtype": dtype}], URL, 2))
        assert f" · {name} KV 262k tokens · " in line
    unknown = str(start_line(model, [{}], URL, 2.0))
    assert unknown.count(" · ") == 3
