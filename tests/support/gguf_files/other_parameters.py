"""`set_gguf_parameters` of further architectures: the keys that others do not have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import gguf
from gguf import MODEL_ARCH, GGUFWriter

from support.gguf_files.recurrent import RECURRENT_PARAMETERS

_Config = dict[str, Any]
_HUNYUAN_LENGTH = 256 * 1024


def _exaone(writer: GGUFWriter, config: _Config) -> None:
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])


def _exaone4(writer: GGUFWriter, config: _Config) -> None:
    if config.get("sliding_window") is not None:
        writer.add_sliding_window(config["sliding_window"])
        types = config["layer_types"]
        writer.add_sliding_window_pattern([one == "sliding_attention" for one in types])


def _hunyuan_rope(writer: GGUFWriter, config: _Config) -> None:
    scaling, size = config["rope_scaling"], config["head_dim"]
    theta = config["rope_theta"] * scaling["alpha"] ** (size / (size - 2))
    writer.add_rope_freq_base(theta)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    writer.add_rope_scaling_factor(1)
    writer.add_rope_scaling_orig_ctx_len(_HUNYUAN_LENGTH)
    writer.add_context_length(_HUNYUAN_LENGTH)


def _hunyuan_moe(writer: GGUFWriter, config: _Config) -> None:
    writer.add_expert_shared_feed_forward_length(config["intermediate_size"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"][0])
    writer.add_expert_used_count(config["moe_topk"][0])
    writer.add_expert_shared_count(config["num_shared_expert"][0])
    _hunyuan_rope(writer, config)


def _arcee(writer: GGUFWriter, config: _Config) -> None:
    writer.add_vocab_size(config["vocab_size"])
    size = config["hidden_size"] // config["num_attention_heads"]
    writer.add_rope_dimension_count(config.get("head_dim") or size)


def _minimax_m2(writer: GGUFWriter, config: _Config) -> None:
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_rope_dimension_count(config["rotary_dim"])


def _ernie_moe(writer: GGUFWriter, config: _Config) -> None:
    writer.add_expert_count(config["moe_num_experts"])
    writer.add_expert_used_count(config["moe_k"])
    writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
    writer.add_leading_dense_block_count(config["moe_layer_start_index"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_count(config["moe_num_shared_experts"])


def _olmo(writer: GGUFWriter, config: _Config) -> None:
    writer.add_layer_norm_eps(1e-5)
    if config.get("clip_qkv") is not None:
        writer.add_clamp_kqv(config["clip_qkv"])


def _minicpm(writer: GGUFWriter, config: _Config) -> None:
    writer.add_embedding_scale(float(config["scale_emb"]))
    writer.add_residual_scale(config["scale_depth"] / math.sqrt(config["num_hidden_layers"]))
    writer.add_logit_scale(config["hidden_size"] / config["dim_model_base"])


def _minicpm3(writer: GGUFWriter, config: _Config) -> None:
    writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    writer.add_key_length(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
    writer.add_rope_dimension_count(config["qk_rope_head_dim"])


def _orion(writer: GGUFWriter, config: _Config) -> None:
    writer.add_tensor_data_layout("Meta AI original pth")
    writer.add_layer_norm_eps(config["rms_norm_eps"])


def _mpt(writer: GGUFWriter, config: _Config) -> None:
    attention = config["attn_config"]
    if heads := attention.get("kv_n_heads"):
        writer.add_head_count_kv(heads)
    writer.add_layer_norm_eps(1e-5)
    if attention["clip_qkv"] is not None:
        writer.add_clamp_kqv(attention["clip_qkv"])
    writer.add_max_alibi_bias(attention["alibi_bias_max"])


def _deepseek(writer: GGUFWriter, config: _Config) -> None:
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_weights_scale(1.0)
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX)


def _bailing(writer: GGUFWriter, config: _Config) -> None:
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_weights_scale(1.0)
    writer.add_expert_shared_count(config["num_shared_experts"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])


def _afmoe(writer: GGUFWriter, config: _Config) -> None:
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])
    writer.add_expert_shared_count(config["num_shared_experts"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_leading_dense_block_count(config["num_dense_layers"])
    writer.add_expert_weights_norm(config["route_norm"])
    writer.add_expert_weights_scale(config["route_scale"])
    writer.add_sliding_window(config["sliding_window"])


def _jais(writer: GGUFWriter, config: _Config) -> None:
    writer.add_max_alibi_bias(8.0)


def _jais2(writer: GGUFWriter, config: _Config) -> None:
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])


def _bailing_2(writer: GGUFWriter, config: _Config) -> None:
    size, shared = config["moe_intermediate_size"], config["num_shared_experts"]
    writer.add_rope_dimension_count(int(config["head_dim"] * config["partial_rotary_factor"]))
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_feed_forward_length(size)
    writer.add_expert_shared_feed_forward_length(size * shared)
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_shared_count(shared)
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])
    writer.add_nextn_predict_layers(config["num_nextn_predict_layers"])


def _dbrx(writer: GGUFWriter, config: _Config) -> None:
    attention, experts = config["attn_config"], config["ffn_config"]
    writer.add_feed_forward_length(experts["ffn_hidden_size"])
    writer.add_head_count_kv(attention["kv_n_heads"])
    writer.add_rope_freq_base(attention["rope_theta"])
    writer.add_clamp_kqv(attention["clip_qkv"])
    writer.add_expert_count(experts["moe_num_experts"])
    writer.add_expert_used_count(experts["moe_top_k"])
    writer.add_layer_norm_eps(1e-5)


def _mimo2(writer: GGUFWriter, config: _Config) -> None:
    pattern = config["hybrid_layer_pattern"]
    heads = config["num_key_value_heads"], config["swa_num_key_value_heads"]
    writer.add_head_count_kv([heads[one] for one in pattern])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(pattern)
    writer.add_value_length(config["v_head_dim"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])
    writer.add_layer_norm_rms_eps(config["layernorm_epsilon"])
    writer.add_float32("mimo2.attention.value_scale", config["attention_value_scale"])
    writer.add_rope_freq_base_swa(config["swa_rope_theta"])


def _deci(writer: GGUFWriter, config: _Config) -> None:
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    if heads := config.get("num_key_value_heads_per_layer"):
        writer.add_head_count_kv(heads)
        return
    blocks = config["block_configs"]
    num_heads, hidden_size = config["num_attention_heads"], config["hidden_size"]
    groups = [one["attention"]["n_heads_in_group"] for one in blocks]
    factors = [one["ffn"]["ffn_mult"] or 0.0 for one in blocks]
    sizes = [int(2 * factor * hidden_size / 3) for factor in factors]
    writer.add_head_count_kv([0 if one is None else num_heads // one for one in groups])
    writer.add_head_count([0 if one is None else num_heads for one in groups])
    writer.add_feed_forward_length([-(-size // 256) * 256 for size in sizes])
    writer.add_key_length(hidden_size // num_heads)
    writer.add_value_length(hidden_size // num_heads)


OTHER_PARAMETERS: Mapping[MODEL_ARCH, Callable[[GGUFWriter, _Config], None]] = {
    MODEL_ARCH.AFMOE: _afmoe,
    MODEL_ARCH.ARCEE: _arcee,
    MODEL_ARCH.BAILINGMOE: _bailing,
    MODEL_ARCH.BAILINGMOE2: _bailing_2,
    MODEL_ARCH.DBRX: _dbrx,
    MODEL_ARCH.DECI: _deci,
    MODEL_ARCH.DEEPSEEK: _deepseek,
    MODEL_ARCH.ERNIE4_5_MOE: _ernie_moe,
    MODEL_ARCH.EXAONE: _exaone,
    MODEL_ARCH.EXAONE4: _exaone4,
    MODEL_ARCH.HUNYUAN_DENSE: _hunyuan_rope,
    MODEL_ARCH.HUNYUAN_MOE: _hunyuan_moe,
    MODEL_ARCH.JAIS: _jais,
    MODEL_ARCH.JAIS2: _jais2,
    MODEL_ARCH.MIMO2: _mimo2,
    MODEL_ARCH.MINICPM: _minicpm,
    MODEL_ARCH.MINICPM3: _minicpm3,
    MODEL_ARCH.MINIMAXM2: _minimax_m2,
    MODEL_ARCH.MPT: _mpt,
    MODEL_ARCH.OLMO: _olmo,
    MODEL_ARCH.ORION: _orion,
    **RECURRENT_PARAMETERS,
}
