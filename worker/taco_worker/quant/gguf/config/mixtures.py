"""Makes the fields of a config.json for mixtures of experts, by architecture.

Source: as `architectures`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from taco_worker.quant.gguf.config.metadata import shortest
from taco_worker.quant.gguf.config.rope_settings import rope_settings
from taco_worker.quant.gguf.config.source import ConfigSource, Fields, decoder, experts

SOFTMAX, SIGMOID = 1, 2  # numbers of expert_gating_func
_GLM_FLASH_VOCABULARY, _GLM_FLASH_LAYERS = 154_880, (47, 48)


def _qwen2_moe(source: ConfigSource) -> Fields:
    return decoder(
        source,
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        **experts(source),
        moe_intermediate_size=source.rows("ffn_up_exps.weight"),
        shared_expert_intermediate_size=source.rows("ffn_up_shexp.weight"),
        decoder_sparse_step=1,
        norm_topk_prob=False,
        use_sliding_window=False,
    )


def _qwen3_moe(source: ConfigSource) -> Fields:
    """Also the text part of Qwen3-VL MoE."""
    return decoder(
        source,
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        **experts(source),
        moe_intermediate_size=source.rows("ffn_up_exps.weight"),
        decoder_sparse_step=1,
        norm_topk_prob=True,
        use_sliding_window=False,
    )


def _olmoe(source: ConfigSource) -> Fields:
    return decoder(
        source,
        "OlmoeForCausalLM",
        "olmoe",
        **experts(source),
        intermediate_size=source.rows("ffn_up_exps.weight"),
        norm_topk_prob=False,
    )


def _gpt_oss(source: ConfigSource) -> Fields:
    fields = decoder(
        source,
        "GptOssForCausalLM",
        "gpt_oss",
        **experts(source, "num_local_experts"),
        intermediate_size=source.rows("ffn_up_exps.weight"),
        attention_bias=source.has("attn_q.bias"),
        sliding_window=source.metadata.size("attention.sliding_window"),
    )
    if fields.get("rope_scaling", {}).get("rope_type") == "yarn":
        fields["rope_scaling"]["truncate"] = False  # as in all published files
    return fields


def _deepseek2(source: ConfigSource) -> Fields:
    """DeepSeek V3, or V2 if experts are chosen by softmax.

    Files with one matrix for keys and values of latent vectors (attn_kv_b) have the sizes of heads
    as key_length and value_length; in others these are sizes of the cache.
    """
    metadata = source.metadata
    is_split = metadata.get("attention.key_length_mla") is not None
    suffix = "_mla" if is_split else ""
    rope_dim = metadata.size("rope.dimension_count")
    query_dim = metadata.size(f"attention.key_length{suffix}")
    if query_dim <= rope_dim:
        raise ValueError(f"its queries have {query_dim} columns, {rope_dim} of them rotated")
    fields: Fields = {
        "hidden_size": source.hidden_size,
        "num_hidden_layers": source.num_layers,
        "num_attention_heads": source.num_heads,
        "num_key_value_heads": source.num_heads,
        "max_position_embeddings": metadata.size("context_length"),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "intermediate_size": metadata.size("feed_forward_length"),
        "q_lora_rank": metadata.optional_size("attention.q_lora_rank"),
        "kv_lora_rank": metadata.size("attention.kv_lora_rank"),
        "qk_nope_head_dim": query_dim - rope_dim,
        "qk_rope_head_dim": rope_dim,
        "v_head_dim": metadata.size(f"attention.value_length{suffix}"),
        "attention_bias": False,
        "rope_interleave": True,
        **routed_experts(source),
        **_deepseek_rope(source),
    }
    if _gating(source) == SIGMOID:
        fields |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
        names = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    else:
        method = "group_limited_greedy" if fields["n_group"] > 1 else "greedy"
        fields |= {"scoring_func": "softmax", "topk_method": method}
        names = {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"}
    return {**names, **fields}


def _deepseek_rope(source: ConfigSource) -> Fields:
    """A tenth of mscale_all_dim is the logarithm's factor; published models have mscale equal."""
    settings = rope_settings(source.metadata, source.rope_factors)
    scaling = settings.get("rope_scaling", {})
    factor = source.metadata.optional_number("rope.scaling.yarn_log_multiplier")
    if scaling.get("rope_type") == "yarn" and factor:
        scaling |= {"mscale": shortest(10 * factor), "mscale_all_dim": shortest(10 * factor)}
    return settings


def _gating(source: ConfigSource) -> int:
    """Files of DeepSeek V2 do not say it, nor do the first ones of GLM 4.7 Flash."""
    value = source.metadata.optional_size("expert_gating_func")
    if value is None:
        num_tokens = source.tensors["token_embd.weight"].shape[0]
        is_flash = num_tokens == _GLM_FLASH_VOCABULARY and source.num_layers in _GLM_FLASH_LAYERS
        return SIGMOID if is_flash else SOFTMAX
    if value not in (SOFTMAX, SIGMOID):
        raise ValueError(
            f"{source.metadata.architecture}.expert_gating_func is {value}; 1 (softmax) and 2 "
            "(sigmoid) are supported"
        )
    return value


def routed_experts(source: ConfigSource) -> Fields:
    """The experts of DeepSeek and GLM 4.5."""
    metadata = source.metadata
    count = metadata.optional_size("expert_count")
    num_dense = metadata.optional_size("leading_dense_block_count") or 0
    return {
        "n_routed_experts": count,
        "num_experts_per_tok": metadata.size("expert_used_count") if count else None,
        "n_shared_experts": metadata.optional_size("expert_shared_count"),
        "moe_intermediate_size": metadata.size("expert_feed_forward_length"),
        "first_k_dense_replace": num_dense if count else source.num_layers,
        "n_group": metadata.optional_size("expert_group_count") or 1,
        "topk_group": metadata.optional_size("expert_group_used_count") or 1,
        "norm_topk_prob": metadata.flag("expert_weights_norm", default=False),
        "routed_scaling_factor": metadata.optional_number("expert_weights_scale") or 1.0,
    }


def _glm4_moe(source: ConfigSource) -> Fields:
    metadata = source.metadata
    if metadata.get("rope.dimension_sections") is not None:
        raise ValueError("GLM 4.5V, whose positions have several axes, is not supported")
    if (gating := metadata.optional_size("expert_gating_func")) not in (None, SIGMOID):
        raise ValueError(f"glm4moe.expert_gating_func must be 2 (sigmoid), not {gating}")
    return decoder(
        source,
        "Glm4MoeForCausalLM",
        "glm4_moe",
        **routed_experts(source),
        attention_bias=source.has("attn_q.bias"),
        use_qk_norm=source.has("attn_q_norm.weight"),
        partial_rotary_factor=source.partial_rotary_factor,
    )


def _phi_moe(source: ConfigSource) -> Fields:
    """Its router ignores close rivals; files do not say how close, so it is as published."""
    metadata = source.metadata
    fields = decoder(
        source,
        "PhiMoEForCausalLM",
        "phimoe",
        **experts(source, "num_local_experts"),
        attention_bias=source.has("attn_q.bias"),
        lm_head_bias="output.bias" in source.tensors,
        sliding_window=metadata.optional_size("attention.sliding_window"),
        router_jitter_noise=0.01,
    )
    if original := metadata.optional_size("rope.scaling.original_context_length"):
        fields["original_max_position_embeddings"] = original
    return fields


MIXTURES: Mapping[str, Callable[[ConfigSource], Fields]] = {
    "qwen2moe": _qwen2_moe,
    "qwen3moe": _qwen3_moe,
    "qwen3vlmoe": _qwen3_moe,
    "olmoe": _olmoe,
    "gpt-oss": _gpt_oss,
    "deepseek2": _deepseek2,
    "glm4moe": _glm4_moe,
    "phimoe": _phi_moe,
}
