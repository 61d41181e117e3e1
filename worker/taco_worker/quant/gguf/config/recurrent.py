"""Makes the fields of a config.json for models with recurrent layers, by architecture.

Source: as `architectures`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from taco_worker.quant.gguf.config.llama_family import granite_factors
from taco_worker.quant.gguf.config.shared_experts import check_gating
from taco_worker.quant.gguf.config.source import ConfigSource, Fields, decoder, experts
from taco_worker.quant.gguf.delta_heads import DeltaHeads

_ATTENTION = "full_attention"


def _qwen_3_5(source: ConfigSource) -> Fields:
    return decoder(source, "Qwen3_5ForCausalLM", "qwen3_5_text", **_delta_net(source))


def _qwen_3_5_moe(source: ConfigSource) -> Fields:
    """Also Qwen3-Next, since files have its projections apart, as Qwen3.5 has them."""
    return decoder(
        source,
        "Qwen3_5MoeForCausalLM",
        "qwen3_5_moe_text",
        **_delta_net(source),
        **experts(source),
        moe_intermediate_size=source.metadata.size("expert_feed_forward_length"),
        shared_expert_intermediate_size=source.rows("ffn_up_shexp.weight"),
    )


def _delta_net(source: ConfigSource) -> Fields:
    """What both models have beside Llama's fields."""
    heads = DeltaHeads.read(source.metadata)
    return {
        "attention_bias": source.some_layer_has("attn_q.bias"),
        "layer_types": _types_of_delta_net(source),
        "linear_conv_kernel_dim": source.metadata.size("ssm.conv_kernel"),
        "linear_key_head_dim": heads.key_dim,
        "linear_num_key_heads": heads.num_keys,
        "linear_num_value_heads": heads.num_values,
        "linear_value_head_dim": heads.value_dim,
        "partial_rotary_factor": source.partial_rotary_factor,
    }


def _types_of_delta_net(source: ConfigSource) -> list[str]:
    """Every fourth layer has attention, unless the file says which."""
    metadata, num_layers = source.metadata, source.num_layers
    given = metadata.get("attention.recurrent_layers")
    if given is None:
        period = metadata.size("full_attention_interval", 4)
        given = [bool((layer + 1) % period) for layer in range(num_layers)]
    if not isinstance(given, list) or len(given) < num_layers:
        raise ValueError(
            f"{metadata.architecture}.attention.recurrent_layers must be a list of {num_layers} "
            f"items, not {given!r:.100}"
        )
    return ["linear_attention" if one else _ATTENTION for one in given[:num_layers]]


def _lfm_2(source: ConfigSource) -> Fields:
    """Its feed_forward_length is that of the matrices."""
    if source.metadata.optional_size("attention.sliding_window"):
        raise ValueError("LFM2 with a sliding window is not supported")
    return decoder(
        source,
        "Lfm2ForCausalLM",
        "lfm2",
        **_short_convolutions(source),
        block_auto_adjust_ff_dim=False,
    )


def _lfm_2_moe(source: ConfigSource) -> Fields:
    check_gating(source)
    metadata = source.metadata
    return decoder(
        source,
        "Lfm2MoeForCausalLM",
        "lfm2_moe",
        **_short_convolutions(source),
        **experts(source),
        moe_intermediate_size=metadata.size("expert_feed_forward_length"),
        norm_topk_prob=True,
        num_dense_layers=metadata.optional_size("leading_dense_block_count") or 0,
        routed_scaling_factor=metadata.optional_number("expert_weights_scale") or 1.0,
        use_expert_bias=source.some_layer_has("exp_probs_b.bias"),
    )


def _short_convolutions(source: ConfigSource) -> Fields:
    return {
        "conv_L_cache": source.metadata.size("shortconv.l_cache"),
        "conv_bias": source.some_layer_has("shortconv.conv.bias"),
        "norm_eps": source.metadata.number("attention.layer_norm_rms_epsilon"),
        **_layers_by_kv_heads(source, "conv"),
    }


def _layers_by_kv_heads(source: ConfigSource, recurrence: str) -> Fields:
    """The types of layers, of which recurrent ones have no KV heads.

    Raises:
        ValueError: layers with attention have several numbers of KV heads.
    """
    metadata, num_heads = source.metadata, source.num_heads
    key = "attention.head_count_kv"
    counts = [metadata.count(key, layer, num_heads) for layer in range(source.num_layers)]
    found = sorted({*counts} - {0})
    if len(found) > 1:
        raise ValueError(f"{metadata.architecture}.{key} has {found}, not one number")
    return {
        "layer_types": [_ATTENTION if count else recurrence for count in counts],
        "num_key_value_heads": found[0] if found else num_heads,
    }


def _granite_4(source: ConfigSource) -> Fields:
    """Granite 4 with Mamba layers; files of other Granite 4 models are of Granite 3's names."""
    metadata = source.metadata
    if metadata.flag("rope.scaling.finetuned", default=True):
        raise ValueError("Mamba layers and rotary positions, as Bamba has, are not supported")
    num_experts = metadata.optional_size("expert_count") or 0
    shared = "ffn_up_shexp.weight" if num_experts else "ffn_up.weight"
    size = metadata.size("ssm.inner_size")
    if size % source.hidden_size:
        raise ValueError(
            f"granitehybrid.ssm.inner_size must be a multiple of {source.hidden_size}, not {size}"
        )
    return decoder(
        source,
        "GraniteMoeHybridForCausalLM",
        "granitemoehybrid",
        **_mamba(source),
        **_layers_by_kv_heads(source, "mamba"),
        **granite_factors(source),
        attention_bias=source.some_layer_has("attn_q.bias"),
        mamba_expand=size // source.hidden_size,
        num_experts_per_tok=metadata.size("expert_used_count") if num_experts else 0,
        num_local_experts=num_experts,
        position_embedding_type="nope",
        shared_intermediate_size=source.rows(shared),
    )


def _falcon_h1(source: ConfigSource) -> Fields:
    """The factors of published configs are in the matrices."""
    return decoder(
        source,
        "FalconH1ForCausalLM",
        "falcon_h1",
        **_mamba(source),
        attention_bias=source.has("attn_q.bias"),
        mamba_d_ssm=source.metadata.size("ssm.inner_size"),
        mamba_norm_before_gate=False,
        mamba_rms_norm=source.has("ssm_norm.weight"),
        mlp_bias=source.has("ffn_up.bias"),
    )


def _mamba(source: ConfigSource) -> Fields:
    """Raises ValueError if heads do not have the same number of columns."""
    metadata = source.metadata
    size, num_heads = metadata.size("ssm.inner_size"), metadata.size("ssm.time_step_rank")
    if size % num_heads:
        raise ValueError(
            f"{metadata.architecture}.ssm.inner_size is {size}, which {num_heads} heads cannot "
            "share evenly"
        )
    return {
        "mamba_conv_bias": source.some_layer_has("ssm_conv1d.bias"),
        "mamba_d_conv": metadata.size("ssm.conv_kernel"),
        "mamba_d_head": size // num_heads,
        "mamba_d_state": metadata.size("ssm.state_size"),
        "mamba_n_groups": metadata.size("ssm.group_count"),
        "mamba_n_heads": num_heads,
        "mamba_proj_bias": False,
    }


RECURRENT: Mapping[str, Callable[[ConfigSource], Fields]] = {
    "qwen35": _qwen_3_5,
    "qwen35moe": _qwen_3_5_moe,
    "qwen3next": _qwen_3_5_moe,
    "lfm2": _lfm_2,
    "lfm2moe": _lfm_2_moe,
    "granitehybrid": _granite_4,
    "falcon-h1": _falcon_h1,
}
