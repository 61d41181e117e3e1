"""Makes the fields of a config.json for further mixtures of experts, most with shared ones.

Source: as `architectures`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from taco_worker.quant.gguf.config.mixtures import SIGMOID, routed_experts
from taco_worker.quant.gguf.config.rope_settings import rope_settings
from taco_worker.quant.gguf.config.source import (
    ConfigSource,
    Fields,
    decoder,
    experts,
    layer_types,
)


def _hunyuan_moe(source: ConfigSource) -> Fields:
    """Its rope.freq_base includes the scaling of theta."""
    metadata = source.metadata
    return decoder(
        source,
        "HunYuanMoEV1ForCausalLM",
        "hunyuan_v1_moe",
        **experts(source),
        attention_bias=source.has("attn_q.bias"),
        use_qk_norm=source.has("attn_q_norm.weight"),
        intermediate_size=metadata.size("expert_shared_feed_forward_length"),
        moe_intermediate_size=metadata.size("expert_feed_forward_length"),
        num_shared_expert=metadata.size("expert_shared_count", 1),
        use_mixed_mlp_moe=True,
    )


def _minimax_m2(source: ConfigSource) -> Fields:
    check_gating(source)
    return decoder(
        source,
        "MiniMaxM2ForCausalLM",
        "minimax_m2",
        **experts(source, "num_local_experts"),
        intermediate_size=source.metadata.size("expert_feed_forward_length"),
        rotary_dim=source.metadata.size("rope.dimension_count", source.head_dim),
        scoring_func="sigmoid",
    )


def _dots1(source: ConfigSource) -> Fields:
    check_gating(source)
    return decoder(
        source,
        "Dots1ForCausalLM",
        "dots1",
        **routed_experts(source),
        attention_bias=source.has("attn_q.bias"),
        scoring_func="sigmoid",
        sliding_window=None,
    )


def _ernie4_5_moe(source: ConfigSource) -> Fields:
    metadata = source.metadata
    return decoder(
        source,
        "Ernie4_5_MoeForCausalLM",
        "ernie4_5_moe",
        use_bias=source.has("attn_q.bias"),
        moe_num_experts=metadata.size("expert_count"),
        moe_k=metadata.size("expert_used_count"),
        moe_num_shared_experts=metadata.optional_size("expert_shared_count") or 0,
        moe_intermediate_size=metadata.size("expert_feed_forward_length"),
        moe_layer_start_index=metadata.optional_size("leading_dense_block_count") or 0,
        moe_layer_interval=metadata.size("interleave_moe_layer_step"),
    )


def _deepseek(source: ConfigSource) -> Fields:
    return decoder(source, "DeepseekForCausalLM", "deepseek", **routed_experts(source))


def _bailing_moe(source: ConfigSource) -> Fields:
    """The head's columns are normalized in the file."""
    metadata = source.metadata
    return decoder(
        source,
        "BailingMoeForCausalLM",
        "bailing_moe",
        **experts(source),
        first_k_dense_replace=metadata.optional_size("leading_dense_block_count") or 0,
        moe_intermediate_size=metadata.size("expert_feed_forward_length"),
        num_shared_experts=metadata.size("expert_shared_count"),
        norm_head=False,
        norm_topk_prob=metadata.flag("expert_weights_norm", default=False),
        use_bias=False,
        use_qkv_bias=source.has("attn_q.bias"),
    )


def _bailing_moe_2(source: ConfigSource) -> Fields:
    check_gating(source)
    own = routed_experts(source)
    return decoder(
        source,
        "BailingMoeV2ForCausalLM",
        "bailing_moe_v2",
        **own,
        num_experts=own["n_routed_experts"],
        num_shared_experts=own["n_shared_experts"] or 0,
        partial_rotary_factor=source.partial_rotary_factor,
        score_function="sigmoid",
        use_bias=False,
        use_qk_norm=source.has("attn_q_norm.weight"),
        use_qkv_bias=source.has("attn_qkv.bias"),
    )


def _afmoe(source: ConfigSource) -> Fields:
    check_gating(source)
    metadata = source.metadata
    return decoder(
        source,
        "AfmoeForCausalLM",
        "afmoe",
        **experts(source),
        layer_types=layer_types(source, 4),
        moe_intermediate_size=metadata.size("expert_feed_forward_length"),
        mup_enabled=True,
        n_group=metadata.optional_size("expert_group_count") or 1,
        num_dense_layers=metadata.optional_size("leading_dense_block_count") or 0,
        num_shared_experts=metadata.size("expert_shared_count"),
        route_norm=metadata.flag("expert_weights_norm", default=False),
        route_scale=metadata.number("expert_weights_scale", 1.0),
        sliding_window=metadata.size("attention.sliding_window"),
    )


def _dbrx(source: ConfigSource) -> Fields:
    metadata = source.metadata
    rope = rope_settings(metadata, source.rope_factors)
    return {
        "architectures": ["DbrxForCausalLM"],
        "model_type": "dbrx",
        "d_model": source.hidden_size,
        "n_heads": source.num_heads,
        "n_layers": source.num_layers,
        "max_seq_len": metadata.size("context_length"),
        "rope_scaling": rope.get("rope_scaling"),
        "attn_config": {
            "clip_qkv": metadata.optional_number("attention.clamp_kqv") or None,
            "kv_n_heads": source.num_kv_heads,
            "rope_theta": rope["rope_theta"],
        },
        "ffn_config": {
            "ffn_hidden_size": metadata.size("feed_forward_length"),
            "moe_normalize_expert_weights": 1,
            "moe_num_experts": metadata.size("expert_count"),
            "moe_top_k": metadata.size("expert_used_count"),
        },
    }


def check_gating(source: ConfigSource) -> None:
    """Raises ValueError for experts that are not chosen by sigmoids."""
    if (gating := source.metadata.optional_size("expert_gating_func")) not in (None, SIGMOID):
        name = source.metadata.architecture
        raise ValueError(f"{name}.expert_gating_func must be 2 (sigmoid), not {gating}")


SHARED_EXPERTS: Mapping[str, Callable[[ConfigSource], Fields]] = {
    "hunyuan-moe": _hunyuan_moe,
    "minimax-m2": _minimax_m2,
    "dots1": _dots1,
    "ernie4_5-moe": _ernie4_5_moe,
    "deepseek": _deepseek,
    "bailingmoe": _bailing_moe,
    "bailingmoe2": _bailing_moe_2,
    "afmoe": _afmoe,
    "dbrx": _dbrx,
}
