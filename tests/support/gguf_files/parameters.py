"""The metadata of a model, as the classes in llama.cpp's `conversion/` write it."""

from __future__ import annotations

import math
from typing import Any

import gguf
import numpy as np
from gguf import MODEL_ARCH, GGUFWriter

from support.gguf_files.other_parameters import OTHER_PARAMETERS

_WITHOUT_HEAD_SIZE = (
    *(MODEL_ARCH.GRANITE, MODEL_ARCH.GRANITE_MOE, MODEL_ARCH.GRANITE_HYBRID),
    MODEL_ARCH.CHATGLM,
)
_WITHOUT_RMS_NORM = (MODEL_ARCH.CHATGLM, MODEL_ARCH.ORION)
_WITHOUT_THETA = (
    *(MODEL_ARCH.CHATGLM, MODEL_ARCH.BAICHUAN),
    *(MODEL_ARCH.ORION, MODEL_ARCH.MINICPM3),
)


_SIGMOID = (
    *(MODEL_ARCH.AFMOE, MODEL_ARCH.BAILINGMOE2, MODEL_ARCH.DOTS1, MODEL_ARCH.MIMO2),
    *(MODEL_ARCH.GLM4_MOE, MODEL_ARCH.MINIMAXM2),
)


def num_blocks(config: dict[str, Any]) -> int:
    """Layers in a file; some models have those that predict further tokens too."""
    names = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    count = next(config[name] for name in names if name in config)
    if config["model_type"].startswith(("qwen3_5", "qwen3_next")):
        return int(count + 1)
    has_others = config["model_type"] in ("glm4_moe", "bailing_moe_v2")
    return int(count + (config["num_nextn_predict_layers"] if has_others else 0))


def add_parameters(
    writer: GGUFWriter,
    config: dict[str, Any],
    architecture: MODEL_ARCH,
    *,
    old_latents: bool = False,
) -> None:
    """Add the keys of `TextModel.set_gguf_parameters`, and those of the architecture."""

    def find(*names: str) -> Any:
        return next((config[name] for name in names if config.get(name) is not None), None)

    hidden_size = find("hidden_size", "n_embd", "d_model")
    num_heads = find("num_attention_heads", "n_head", "n_heads")
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_block_count(num_blocks(config))
    lengths = ("n_positions", "seq_length", "max_seq_len", "model_max_length")
    writer.add_context_length(find("max_position_embeddings", *lengths) or 2048)
    writer.add_embedding_length(hidden_size)
    size = find("intermediate_size", "n_inner", "ffn_hidden_size")
    writer.add_feed_forward_length(size or 4 * hidden_size)
    writer.add_head_count(num_heads)
    is_falcon = architecture is MODEL_ARCH.FALCON
    if is_falcon:
        writer.add_head_count_kv(find("num_kv_heads") or 1)
    elif architecture is MODEL_ARCH.DEEPSEEK2:
        writer.add_head_count_kv(config["num_attention_heads"] if old_latents else 1)
    elif kv_heads := find("num_key_value_heads"):
        writer.add_head_count_kv(kv_heads)
    elif architecture is MODEL_ARCH.STARCODER:
        writer.add_head_count_kv(1)
    if (eps := find("rms_norm_eps")) and architecture not in _WITHOUT_RMS_NORM:
        writer.add_layer_norm_rms_eps(eps)
    if eps := find("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"):
        writer.add_layer_norm_eps(eps)
    rope = {**config, **(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = rope.get("rope_theta")
    if theta and architecture not in _WITHOUT_THETA:
        writer.add_rope_freq_base(theta)
    head_dim = config.get("head_dim")
    if head_dim and architecture not in _WITHOUT_HEAD_SIZE:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if architecture in (MODEL_ARCH.LLAMA, MODEL_ARCH.GRANITE, MODEL_ARCH.SMOLLM3):
        writer.add_vocab_size(config["vocab_size"])
        writer.add_rope_dimension_count(head_dim or hidden_size // num_heads)
    partial = find("partial_rotary_factor")
    if partial and architecture is not MODEL_ARCH.CHATGLM:
        writer.add_rope_dimension_count(int(partial * (head_dim or hidden_size // num_heads)))
    kind = rope.get("rope_type") or rope.get("type")
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        if factor := rope.get("attention_factor"):
            writer.add_rope_scaling_yarn_attn_factor(factor)
    elif kind == "longrope":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
    if sections := rope.get("mrope_section"):
        writer.add_rope_dimension_sections([*sections, 0])
    if experts := find("num_local_experts", "num_experts"):
        writer.add_expert_count(experts)
        if architecture is not MODEL_ARCH.HUNYUAN_MOE:
            writer.add_expert_used_count(config["num_experts_per_tok"])
    if architecture in (MODEL_ARCH.DEEPSEEK2, MODEL_ARCH.DOTS1, MODEL_ARCH.GLM4_MOE):
        _add_routed_experts(writer, config)
    if architecture is MODEL_ARCH.DEEPSEEK2:
        _add_latents(writer, config, old=old_latents)
    if architecture in _SIGMOID:
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if architecture is MODEL_ARCH.GLM4_MOE:
        writer.add_nextn_predict_layers(config["num_nextn_predict_layers"])
    _add_own(writer, config, architecture)


def _add_routed_experts(writer: GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_leading_dense_block_count(config.get("first_k_dense_replace", 1))
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])
    if config["norm_topk_prob"]:
        writer.add_expert_weights_norm(True)


def _add_latents(writer: GGUFWriter, config: dict[str, Any], *, old: bool) -> None:
    """`DeepseekV2Model.set_gguf_parameters`, today's and that before keys were split."""
    scoring = config.get("scoring_func", "sigmoid")
    if scoring == "sigmoid" or not old:
        writer.add_expert_gating_func(getattr(gguf.ExpertGatingFuncType, scoring.upper()))
    if config.get("q_lora_rank"):
        writer.add_q_lora_rank(config["q_lora_rank"])
    rank, rope_dim = config["kv_lora_rank"], config["qk_rope_head_dim"]
    key_length = config["qk_nope_head_dim"] + rope_dim
    writer.add_kv_lora_rank(rank)
    writer.add_key_length(key_length if old else rank + rope_dim)
    writer.add_value_length(config["v_head_dim"] if old else rank)
    if not old:
        writer.add_key_length_mla(key_length)
        writer.add_value_length_mla(config["v_head_dim"])
    writer.add_rope_dimension_count(rope_dim)
    if scaling := config.get("rope_scaling"):
        writer.add_rope_scaling_yarn_log_mul(0.1 * scaling["mscale_all_dim"])


def _add_own(writer: GGUFWriter, config: dict[str, Any], architecture: MODEL_ARCH) -> None:
    match architecture:
        case MODEL_ARCH.QWEN2MOE:
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
            writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
        case MODEL_ARCH.MISTRAL3:
            rope = config["rope_parameters"]
            writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
            writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
        case MODEL_ARCH.QWEN3MOE | MODEL_ARCH.QWEN3VLMOE:
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        case MODEL_ARCH.GEMMA2:
            writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
            writer.add_final_logit_softcapping(config["final_logit_softcapping"])
            writer.add_sliding_window(config["sliding_window"])
        case MODEL_ARCH.GEMMA3:
            writer.add_sliding_window(config["sliding_window"])
        case MODEL_ARCH.CHATGLM:
            size = config["hidden_size"] // config["num_attention_heads"]
            writer.add_head_count_kv(
                config.get("multi_query_group_num") or config["num_key_value_heads"]
            )
            writer.add_layer_norm_rms_eps(config.get("layernorm_epsilon", 1e-5))
            writer.add_rope_dimension_count(int(size * config.get("partial_rotary_factor", 0.5)))
            writer.add_rope_freq_base(10_000 * config.get("rope_ratio", 1))
            writer.add_add_bos_token(False)
        case MODEL_ARCH.BAICHUAN:
            size = config["hidden_size"] // config["num_attention_heads"]
            writer.add_tensor_data_layout("Meta AI original pth")
            writer.add_rope_dimension_count(size)
            writer.add_head_count_kv(config["num_attention_heads"])
        case MODEL_ARCH.GPTNEOX:
            size = config["hidden_size"] // config["num_attention_heads"]
            writer.add_rope_dimension_count(int(config["rotary_pct"] * size))
            writer.add_parallel_residual(config.get("use_parallel_residual", True))
        case MODEL_ARCH.QWEN:
            writer.add_rope_freq_base(config["rotary_emb_base"])
            writer.add_rope_dimension_count(config["kv_channels"])
            writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
        case MODEL_ARCH.OLMO2 if "sliding_window" in config:
            count, given = config["num_hidden_layers"], config.get("layer_types")
            types = given or ["full" if (i + 1) % 4 == 0 else "sliding" for i in range(count)]
            writer.add_sliding_window(config["sliding_window"])
            writer.add_sliding_window_pattern([one.startswith("sliding") for one in types])
        case MODEL_ARCH.PHI3 | MODEL_ARCH.PHIMOE:
            length = config.get("original_max_position_embeddings")
            length = length or config["max_position_embeddings"]
            writer.add_rope_scaling_orig_ctx_len(length)
            writer.add_sliding_window(config.get("sliding_window") or 0)
            if (config.get("rope_scaling") or {}).get("long_factor"):
                scale = config["max_position_embeddings"] / length
                factor = math.sqrt(1 + math.log(scale) / math.log(length)) if scale > 1 else 1.0
                writer.add_rope_scaling_attn_factors(factor)
        case MODEL_ARCH.STABLELM:
            writer.add_parallel_residual(config.get("use_parallel_residual", False))
        case MODEL_ARCH.COMMAND_R:
            writer.add_logit_scale(config["logit_scale"])
        case MODEL_ARCH.COHERE2:
            writer.add_logit_scale(config["logit_scale"])
            writer.add_sliding_window(config["sliding_window"])
        case MODEL_ARCH.GPT_OSS:
            writer.add_expert_feed_forward_length(config["intermediate_size"])
            writer.add_sliding_window(config["sliding_window"])
        case MODEL_ARCH.GRANITE | MODEL_ARCH.GRANITE_MOE:
            writer.add_attention_scale(config["attention_multiplier"])
            writer.add_embedding_scale(config["embedding_multiplier"])
            writer.add_residual_scale(config["residual_multiplier"])
            writer.add_logit_scale(config["logits_scaling"])
            if size := config.get("shared_intermediate_size"):
                writer.add_expert_shared_feed_forward_length(size)
        case _ if architecture in OTHER_PARAMETERS:
            OTHER_PARAMETERS[architecture](writer, config)


def rope_factors(config: dict[str, Any]) -> dict[str, np.ndarray]:
    """The tensors with factors of frequencies: Llama 3's, and LongRoPE's of Phi 3."""
    scaling = config.get("rope_scaling") or {}
    if scaling.get("long_factor"):
        return {
            f"rope_factors_{name}.weight": np.array(scaling[f"{name}_factor"], np.float32)
            for name in ("long", "short")
        }
    if scaling.get("rope_type") != "llama3":
        return {}
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    length, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    factors = []
    for i in range(0, size, 2):
        wavelength = 2 * math.pi * config["rope_theta"] ** (i / size)
        if wavelength < length / high:
            factors.append(1.0)
        elif wavelength > length / low:
            factors.append(factor)
        else:
            smooth = (length / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return {"rope_freqs.weight": np.array(factors, np.float32)}
