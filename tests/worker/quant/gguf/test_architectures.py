"""Models in GGUF against Hugging Face's on the same numbers, for every architecture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from support.architectures.variants import VARIANTS
from support.gguf_files.convert import write_gguf
from support.mixed_batches import assert_follows, in_chunks, three_sequences
from support.models import load_step_model
from support.paged import PagedRunner
from taco_worker.models.config import load_hf_config
from taco_worker.quant.gguf.model_directory import model_directory

pytestmark = pytest.mark.kernels

_NUM_BLOCKS, _BLOCK_SIZE = 40, 16
_NAMES = (
    *("llama-2-like", "llama-3.1-like", "llama-biased-like", "yi-like", "mistral-nemo-like"),
    *("qwen2-like", "qwen3-like", "smollm3-like", "granite-like", "xverse-like"),
    *("mixtral-8x7b-like", "qwen1.5-moe-like", "qwen3-moe-like", "olmoe-like", "olmo-2-like"),
    *("gemma-7b-like", "gemma-2-like", "gemma-3-1b-like"),
    *("phi-2-like", "phi-3-mini-4k-like", "phi-3-mini-128k-like", "phi-4-mini-like"),
    *("falcon-7b-like", "falcon-40b-like", "falcon-11b-like", "bloom-like"),
    *("gpt2-like", "starcoder-like", "starcoder2-like", "nemotron-like"),
    *("stablelm-3b-4e1t-like", "stablelm-2-1.6b-like", "stablelm-2-12b-like"),
    *("command-r-like", "command-r-plus-like", "command-r7b-like"),
    *("gpt-oss-transformers-5-like", "glm-4-0414-like", "granite-moe-like"),
    *("ministral-3-text-like", "qwen2-vl-like", "olmo-3-like"),
    *("deepseek-v2-lite-like", "deepseek-v2-like", "deepseek-v3-like"),
    *("glm-4.5-like", "phi-3.5-moe-like", "phimoe-unbiased-like"),
    *("chatglm3-6b-like", "glm-4-9b-chat-like", "glm-4-9b-like", "internlm2-like"),
    *("baichuan-7b-like", "baichuan-13b-like", "baichuan2-7b-like"),
    *("pythia-like", "gpt-neox-serial-like", "qwen-7b-like"),
    *("ernie-4.5-like", "seed-oss-like", "exaone-4-32b-like", "exaone-4-1.2b-like"),
    *("exaone-3.5-like", "hunyuan-7b-like", "hunyuan-a13b-like", "arcee-like"),
    *("minimax-m2-like", "dots1-like", "ernie-4.5-moe-like", "olmo-1-like"),
    *("qwen3-vl-like", "qwen3-vl-moe-like", "minicpm-2b-like", "minicpm4-like", "minicpm3-like"),
    *("orion-14b-like", "mpt-7b-like", "mpt-7b-storywriter-like"),
    *("deepseek-moe-like", "ling-like", "granite-moe-shared-like", "glm-4.7-flash-like"),
    *("ling-2-like", "trinity-like", "jais-family-like", "jais-2-like", "dbrx-like"),
    *("mimo-v2-flash-like", "nemotron-nas-like", "decilm-7b-like"),
    *("qwen3.5-like", "qwen3.5-text-like", "qwen3.5-moe-like", "qwen3.5-moe-transformers-5-like"),
    *("qwen3-next-like", "lfm2-like", "lfm2-transformers-5-like"),
    *("lfm2-moe-like", "lfm2-moe-stacked-like", "granite-4-small-like", "granite-4-micro-like"),
    *("falcon-h1-like", "falcon-h1-normed-like"),
)


_NAS = VARIANTS["nemotron-nas-like"].config["block_configs"]
# What llama.cpp's files cannot say, at the values that its reader assumes.
_ASSUMED: Mapping[str, Mapping[str, Any]] = {
    "gemma-2-like": {"query_pre_attn_scalar": 20},
    "gemma-3-1b-like": {
        "query_pre_attn_scalar": 20,
        "sliding_window_pattern": 6,
        "num_hidden_layers": 7,
        "rope_local_base_freq": 10_000.0,
    },
    "command-r7b-like": {"sliding_window_pattern": 4, "num_hidden_layers": 5},
    "qwen1.5-moe-like": {"mlp_only_layers": []},
    "gpt-oss-transformers-5-like": {"swiglu_limit": 7.0},
    "starcoder2-like": {"sliding_window": None},
    "phi-3.5-moe-like": {
        "router_jitter_noise": 0.01,
        "rope_scaling": {
            **VARIANTS["phi-3.5-moe-like"].config["rope_scaling"],
            "short_mscale": 1.6**0.5,
            "long_mscale": 1.6**0.5,
        },
    },
    "chatglm3-6b-like": {"kv_channels": 12},
    "glm-4-9b-chat-like": {"kv_channels": 12},
    "glm-4-9b-like": {"head_dim": 12, "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5},
    "olmo-3-like": {"rope_theta": 500_000.0},
    "internlm2-like": {"rope_scaling": None},
    "baichuan-13b-like": {"num_hidden_layers": 40, "intermediate_size": 40},
    "nemotron-nas-like": {  # also with a layer that has neither attention nor an MLP
        "num_hidden_layers": 5,
        "block_configs": [*_NAS, {**_NAS[1], "ffn": _NAS[2]["ffn"]}],
    },
    "jais-family-like": {"tie_word_embeddings": False},
    "ling-like": {"first_k_dense_replace": 0},
    "trinity-like": {
        "num_hidden_layers": 5,
        "layer_types": None,
        "global_attn_every_n_layers": 4,
    },
    "hunyuan-a13b-like": {"head_dim": 12, "attention_head_dim": 12},
    "minicpm4-like": {
        "rope_scaling": {
            **VARIANTS["minicpm4-like"].config["rope_scaling"],
            "original_max_position_embeddings": 256,
        },
    },
    "qwen3-next-like": {"mlp_only_layers": []},
    "lfm2-moe-like": {"routed_scaling_factor": 1.0},
    "lfm2-moe-stacked-like": {"routed_scaling_factor": 1.0},
    "granite-4-micro-like": {
        "layer_types": ["mamba", "attention", "mamba"],
        "position_embedding_type": "nope",
    },
    "falcon-h1-normed-like": {"mamba_proj_bias": False},
    "minicpm3-like": {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
    "qwen3-vl-moe-like": {
        "text_config": {
            **VARIANTS["qwen3-vl-moe-like"].config["text_config"],
            "mlp_only_layers": [],
        },
    },
}


_WIDE_DELTA: Mapping[str, Any] = {
    "linear_value_head_dim": 32,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 32,
}
# Sizes of which rows are whole blocks.
_WIDE: Mapping[str, Mapping[str, Any]] = {
    "ling-like": {
        "hidden_size": 192,
        "head_dim": 32,
        "moe_intermediate_size": 64,
        "norm_head": False,
    },
    "granite-moe-shared-like": {
        "hidden_size": 192,
        "intermediate_size": 64,
        "shared_intermediate_size": 96,
    },
    "dbrx-like": {
        "d_model": 192,
        "ffn_config": {**VARIANTS["dbrx-like"].config["ffn_config"], "ffn_hidden_size": 64},
    },
    "nemotron-nas-like": {"hidden_size": 192},
    "qwen3.5-text-like": _WIDE_DELTA,
    "qwen3.5-moe-text-like": _WIDE_DELTA,
    "qwen3-next-like": _WIDE_DELTA,
    "lfm2-like": {"block_auto_adjust_ff_dim": False, "block_ff_dim": 64},
    "lfm2-moe-like": {"moe_intermediate_size": 32},
    "granite-4-small-like": {"shared_intermediate_size": 96, "mamba_d_head": 64},
    "granite-4-micro-like": {"shared_intermediate_size": 64, "mamba_d_head": 64},
    "falcon-h1-normed-like": {
        "embedding_multiplier": 1.0,
        "mlp_multipliers": [1.0, 1.0],
        "ssm_multipliers": [1.0] * 5,
    },
    "hunyuan-a13b-like": {
        "hidden_size": 192,
        "head_dim": 32,
        "attention_head_dim": 32,
        "intermediate_size": 64,
        "moe_intermediate_size": [64, 64],
    },
}


@pytest.mark.parametrize("name", _NAMES)
def test_logits(name: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    source = variant.make(tmp_path / "hf", **_ASSUMED.get(name, {}))
    file = write_gguf(source, tmp_path / "model.gguf")
    directory = model_directory(file, tmp_path / "cache")
    length = min(_NUM_BLOCKS * _BLOCK_SIZE, load_hf_config(source).plan.max_position_embeddings)
    oracle = variant.reference(source, max_model_len=length)
    sequences = three_sequences()
    runner = PagedRunner(load_step_model(directory, "kernels"), num_blocks=_NUM_BLOCKS)
    assert_follows(in_chunks(runner, sequences), oracle, sequences)


@pytest.mark.parametrize(
    ("name", "kind", "old"),
    [
        ("deepseek-v2-lite-like", "F32", {"old_latents": True}),
        ("deepseek-v3-like", "F32", {"old_latents": True, "max_tensors": 3}),
        ("deepseek-v3-like", "Q8_0", {"old_latents": True}),
        ("deepseek-v3-like", "Q8_0", {"max_tensors": 1}),
        ("mixtral-8x7b-like", "F32", {"old_experts": True}),
        ("mixtral-8x7b-like", "Q4_0", {"old_experts": True}),
        ("baichuan-7b-like", "Q8_0", {"max_tensors": 1}),
        ("internlm2-like", "Q8_0", {}),
        ("ling-like", "Q8_0", {"max_tensors": 1}),
        ("granite-moe-shared-like", "Q8_0", {}),
        ("dbrx-like", "Q8_0", {}),
        ("nemotron-nas-like", "Q8_0", {}),
        ("exaone-3.5-like", "Q4_0", {}),
        ("hunyuan-a13b-like", "Q8_0", {}),
        ("minimax-m2-like", "Q8_0", {}),
        ("minicpm3-like", "Q8_0", {}),
        ("qwen3.5-text-like", "Q8_0", {"max_tensors": 3}),
        ("qwen3.5-moe-text-like", "Q8_0", {}),
        ("qwen3-next-like", "Q8_0", {}),
        ("lfm2-like", "Q8_0", {}),
        ("lfm2-moe-like", "Q4_0", {}),
        ("granite-4-small-like", "Q8_0", {"max_tensors": 1}),
        ("granite-4-micro-like", "Q8_0", {}),
        ("falcon-h1-normed-like", "Q8_0", {}),
        ("falcon-h1-normed-like", "F16", {}),
    ],
)
def test_forms_of_files(name: str, kind: str, old: dict[str, Any], tmp_path: Path) -> None:
    """Quantized ones too, whose numbers the oracle has; some matrices are in parts."""
    variant = VARIANTS[name]
    sizes: dict[str, Any] = {} if kind == "F32" else {"hidden_size": 192, "intermediate_size": 64}
    if kind != "F32" and name.startswith(("deepseek", "minicpm3")):
        sizes |= {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "v_head_dim": 32, "q_lora_rank": 64}
        sizes |= {"moe_intermediate_size": 64}
    if kind != "F32":
        sizes |= _WIDE.get(name, {})
    source = variant.make(tmp_path / "hf", **{**_ASSUMED.get(name, {}), **sizes})
    file = write_gguf(source, tmp_path / "model.gguf", kind, **old)
    directory = model_directory(file, tmp_path / "cache")
    sequences = three_sequences()
    runner = PagedRunner(load_step_model(directory, "kernels"), num_blocks=_NUM_BLOCKS)
    logits = in_chunks(runner, sequences)
    length = load_hf_config(source).plan.max_position_embeddings
    expected = variant.reference(source, max_model_len=length)(list(sequences.values()))
    for one, wanted in zip(sequences, expected, strict=True):
        torch.testing.assert_close(logits[one], wanted, atol=2e-4, rtol=0)


@pytest.mark.parametrize("serves", ["kernels", "torch"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q6_K", "IQ4_XS"])
def test_logits_of_quantized_matrices(kind: str, serves: str, tmp_path: Path) -> None:
    """A back end may keep the codes, and round scales of small groups to 11 bits."""
    variant = VARIANTS["llama-2-like"]
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8}
    source = variant.make(tmp_path / "hf", **sizes, num_key_value_heads=2)
    directory = model_directory(write_gguf(source, tmp_path / "m.gguf", kind), tmp_path / "cache")
    sequences = three_sequences()
    runner = PagedRunner(load_step_model(directory, serves), num_blocks=_NUM_BLOCKS)
    logits = in_chunks(runner, sequences)
    for name, expected in zip(
        sequences, variant.reference(source)(list(sequences.values())), strict=True
    ):
        torch.testing.assert_close(logits[name], expected, atol=2e-4, rtol=0)
