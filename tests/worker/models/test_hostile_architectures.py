"""Contradictory or impossible fields of each kind of architecture end with a one-line error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.architectures.variants import VARIANTS
from taco_worker.models.config import load_hf_config

YARN = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [1.0] * 6}
SLIDING = "sliding_attention"
LLAMA, MISTRAL, PHI_3 = "llama-2-like", "mistral-7b-v0.1-like", "phi-3-mini-128k-like"
GEMMA_2, GEMMA_3, SMOLLM_3 = "gemma-2-like", "gemma-3-1b-like", "smollm3-like"
MIXTRAL, DEEPSEEK, MIMO = "mixtral-8x7b-like", "deepseek-v3-like", "mimo-v2-flash-like"
EXAONE_4, QWEN_3_NEXT = "exaone-4-pattern-like", "qwen3-next-like"

CASES: list[tuple[str, dict[str, Any], str]] = [
    (LLAMA, {"num_key_value_heads": 4}, "6 attention heads cannot share 4 KV heads evenly"),
    (LLAMA, {"architectures": "LlamaForCausalLM"}, "architectures must be a list of names"),
    (LLAMA, {"architectures": [1]}, "architectures must be a list of names, not [1]"),
    (LLAMA, {"architectures": ["llamaforcausallm"]}, "did you mean LlamaForCausalLM"),
    (LLAMA, {"architectures": ["x" * 10_000]}, f"architecture {'x' * 100} is not supported"),
    (LLAMA, {"is_causal": False}, "is_causal False is not supported, only True"),
    (LLAMA, {"eos_token_id": "x"}, "eos_token_id must be one or more integers, not 'x'"),
    (LLAMA, {"eos_token_id": {}}, "eos_token_id must be one or more integers, not {}"),
    (LLAMA, {"quantization_config": "awq"}, "quantization_config must be an object, not 'awq'"),
    (LLAMA, {"rope_scaling": "linear"}, "rope_scaling must be an object, not 'linear'"),
    (LLAMA, {"rope_parameters": [1]}, "rope_parameters must be an object, not [1]"),
    (LLAMA, {"rope_scaling": {"type": "wavelet"}}, "unknown rope scaling 'wavelet'"),
    (LLAMA, {"rope_scaling": {"type": "linear"}}, "'linear' needs a positive 'factor', not None"),
    (LLAMA, {"rope_scaling": {**YARN, "beta_fast": "x"}}, "needs a positive 'beta_fast', not 'x'"),
    (LLAMA, {"rope_scaling": {**YARN, "mscale": -5.0}}, "needs a positive 'mscale', not -5.0"),
    (
        LLAMA,
        {"rope_scaling": {**YARN, "original_max_position_embeddings": 0}},
        "original_max_position_embeddings must be a number of tokens, 2 or more, not 0",
    ),
    (PHI_3, {"original_max_position_embeddings": -4}, "2 or more, not -4"),
    (PHI_3, {"original_max_position_embeddings": 1}, "2 or more, not 1"),
    (PHI_3, {"rope_scaling": {**LONGROPE, "long_factor": [1.0]}}, "needs 6 long_factor numbers"),
    (MISTRAL, {"sliding_window": -1}, "sliding_window must be a positive integer, not -1"),
    ("qwen2-like", {"layer_types": [SLIDING] * 2}, "and use_sliding_window is false"),
    ("qwen2-like", {"layer_types": ["chunked_attention"] * 2}, "not 'chunked_attention'"),
    (GEMMA_2, {"layer_types": ["full_attention"]}, "layer_types must be a list of 2 items"),
    (GEMMA_2, {"attn_logit_softcapping": 0}, "attn_logit_softcapping must be above 0, not 0"),
    (GEMMA_2, {"final_logit_softcapping": -30.0}, "final_logit_softcapping must be above 0"),
    (GEMMA_3, {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
    (SMOLLM_3, {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
    ("qwen-7b-like", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
    (SMOLLM_3, {"no_rope_layers": [-1] * 4}, "no_rope_layers must be a list of 0 and 1"),
    (EXAONE_4, {"sliding_window_pattern": ""}, "must be a number or letters L and G, not ''"),
    ("granite-like", {"attention_multiplier": -1.0}, "scale must be positive, not -1.0"),
    ("olmoe-like", {"clip_qkv": 0}, "clip_qkv must be above 0, not 0"),
    ("pythia-like", {"rotary_pct": 2.0}, "partial_rotary_factor must be at most 1, not 2.0"),
    (MIXTRAL, {"num_experts_per_tok": 99}, "top_k must be 1 to 5 with 5 experts to choose from"),
    (MIXTRAL, {"num_local_experts": "8"}, "num_local_experts must be a positive integer"),
    (MIXTRAL, {"num_local_experts": 10**6}, "a router has 1 to 1024 experts, not 1000000"),
    (DEEPSEEK, {"n_group": 5}, "8 experts cannot form 5 groups of equal size"),
    (DEEPSEEK, {"topk_group": 99}, "the best 99 of 4 groups cannot be chosen"),
    (DEEPSEEK, {"qk_rope_head_dim": 7}, "an even rotary_dim of 2 or more, not 7"),
    (DEEPSEEK, {"first_k_dense_replace": -3}, "must be an integer, 0 or above, not -3"),
    (QWEN_3_NEXT, {"linear_num_key_heads": 4}, "6 heads of linear attention cannot share 4 key"),
    (QWEN_3_NEXT, {"linear_conv_kernel_dim": 1}, "a convolution reads 2 tokens or more, not 1"),
    (QWEN_3_NEXT, {"layer_types": ["mamba"] * 4}, "mamba"),
    (MIMO, {"rope_scaling": YARN}, "is not supported, only None"),
    (MIMO, {"hybrid_layer_pattern": [0, 1, 2]}, "hybrid_layer_pattern must be a list of 0 and 1"),
    (MIMO, {"mlp_layer_types": ["moe"] * 3}, "mlp_layer_types must be dense or sparse, not 'moe'"),
]


def _config(path: Path, name: str, fields: dict[str, Any]) -> Path:
    (path / "config.json").write_text(json.dumps({**VARIANTS[name].config, **fields}))
    return path


@pytest.mark.parametrize(("name", "fields", "message"), CASES, ids=str)
def test_one_line(name: str, fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is compared below)
        load_hf_config(_config(tmp_path, name, fields))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_end_tokens_that_are_not_in_the_vocabulary_cannot_end_a_sequence(tmp_path: Path) -> None:
    path = _config(tmp_path, LLAMA, {"eos_token_id": [-1, 5, 384, 10**30]})
    assert load_hf_config(path).eos_token_ids == (5,)
