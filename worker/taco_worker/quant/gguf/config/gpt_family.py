"""Makes the fields of a config.json for GPT-2 and its relatives, by architecture.

Source: as `architectures`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from taco_worker.quant.gguf.config.source import (
    ConfigSource,
    Fields,
    decoder,
    layer_norm_epsilon,
)


def _falcon(source: ConfigSource) -> Fields:
    has_two_norms = source.has("attn_norm_2.weight")
    is_new = has_two_norms or source.num_kv_heads > 1
    fields = decoder(
        source,
        "FalconForCausalLM",
        "falcon",
        layer_norm_epsilon=layer_norm_epsilon(source),
        ffn_hidden_size=source.metadata.size("feed_forward_length"),
        new_decoder_architecture=is_new,
        num_ln_in_parallel_attn=2 if has_two_norms else 1,
        num_kv_heads=source.num_kv_heads,
        multi_query=not is_new,
        parallel_attn=True,
        bias=source.has("attn_qkv.bias"),
        alibi=False,
    )
    del fields["head_dim"], fields["num_key_value_heads"]
    return fields


def _bloom(source: ConfigSource) -> Fields:
    return {
        "architectures": ["BloomForCausalLM"],
        "model_type": "bloom",
        "hidden_size": source.hidden_size,
        "n_head": source.num_heads,
        "n_layer": source.num_layers,
        "seq_length": source.metadata.size("context_length"),
        "layer_norm_epsilon": layer_norm_epsilon(source),
    }


def _gpt2(source: ConfigSource) -> Fields:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": source.hidden_size,
        "n_head": source.num_heads,
        "n_layer": source.num_layers,
        "n_positions": source.metadata.size("context_length"),
        "n_inner": source.metadata.size("feed_forward_length"),
        "layer_norm_epsilon": layer_norm_epsilon(source),
    }


def _starcoder(source: ConfigSource) -> Fields:
    names = {"architectures": ["GPTBigCodeForCausalLM"], "model_type": "gpt_bigcode"}
    return {**_gpt2(source), **names, "multi_query": source.num_kv_heads == 1}


def _gpt_neox(source: ConfigSource) -> Fields:
    fields = decoder(
        source,
        "GPTNeoXForCausalLM",
        "gpt_neox",
        hidden_act="gelu",
        layer_norm_eps=layer_norm_epsilon(source),
        rotary_pct=source.partial_rotary_factor,
        use_parallel_residual=source.metadata.flag("use_parallel_residual", default=True),
        attention_bias=source.has("attn_qkv.bias"),
    )
    fields["rotary_emb_base"] = fields["rope_theta"]
    return fields


def _qwen(source: ConfigSource) -> Fields:
    """The first Qwen; what it does beyond its training length is not in files."""
    metadata = source.metadata
    key = "attention.layer_norm_rms_epsilon"
    has_own = metadata.get(key) is not None
    fields = decoder(
        source,
        "QWenLMHeadModel",
        "qwen",
        kv_channels=source.head_dim,
        layer_norm_epsilon=metadata.number(key) if has_own else layer_norm_epsilon(source),
        seq_length=metadata.size("context_length"),
        use_dynamic_ntk=False,
        use_logn_attn=False,
        no_bias=True,
        rotary_pct=1.0,
        scale_attn_weights=True,
    )
    fields["rotary_emb_base"] = fields["rope_theta"]
    return fields


def _mpt(source: ConfigSource) -> Fields:
    metadata = source.metadata
    bias = metadata.number("attention.max_alibi_bias")
    return {
        "architectures": ["MPTForCausalLM"],
        "model_type": "mpt",
        "d_model": source.hidden_size,
        "n_heads": source.num_heads,
        "n_layers": source.num_layers,
        "max_seq_len": metadata.size("context_length"),
        "layer_norm_epsilon": layer_norm_epsilon(source),
        "no_bias": True,
        "attn_config": {
            "alibi": bias > 0,
            "alibi_bias_max": bias,
            "clip_qkv": metadata.optional_number("attention.clamp_kqv") or None,
            "kv_n_heads": source.num_kv_heads,
        },
    }


def _jais(source: ConfigSource) -> Fields:
    """The factors on embeddings and logits are in the matrices."""
    if (bias := source.metadata.number("attention.max_alibi_bias", 8.0)) != 8:
        raise ValueError(f"jais.attention.max_alibi_bias must be 8, not {bias}")
    return {
        **_gpt2(source),
        "architectures": ["JAISLMHeadModel"],
        "model_type": "jais",
        "activation_function": "swiglu",
        "position_embedding_type": "alibi",
        "mup_scale_qk_dot_by_d": True,
    }


GPT_FAMILY: Mapping[str, Callable[[ConfigSource], Fields]] = {
    "falcon": _falcon,
    "bloom": _bloom,
    "gpt2": _gpt2,
    "starcoder": _starcoder,
    "gptneox": _gpt_neox,
    "qwen": _qwen,
    "mpt": _mpt,
    "jais": _jais,
}
