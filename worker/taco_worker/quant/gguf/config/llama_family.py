"""Makes the fields of a config.json for dense relatives of Llama, by architecture.

Source: as `architectures`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from taco_worker.quant.gguf.config.rope_settings import rope_settings
from taco_worker.quant.gguf.config.source import (
    ConfigSource,
    Fields,
    decoder,
    layer_norm_epsilon,
    layer_types,
)

_EXAONE_LAYERS_WITH_WINDOW = 64
# Of MiniCPM 3, and of files of MiniCPM before 2026: those do not have the factors.
_MINICPM_EMBEDDING_SCALE, _MINICPM_DEPTH_SCALE, _MINICPM_BASE = 12.0, 1.4, 256


def _ernie4_5(source: ConfigSource) -> Fields:
    has_biases = source.has("attn_q.bias")
    return decoder(source, "Ernie4_5ForCausalLM", "ernie4_5", use_bias=has_biases)


def _seed_oss(source: ConfigSource) -> Fields:
    return decoder(
        source,
        "SeedOssForCausalLM",
        "seed_oss",
        attention_bias=source.has("attn_q.bias"),
        attention_out_bias=source.has("attn_output.bias"),
        mlp_bias=source.has("ffn_gate.bias"),
    )


def _exaone4(source: ConfigSource) -> Fields:
    """Without a window, all layers see the whole text and have rotary positions."""
    window = source.metadata.optional_size("attention.sliding_window")
    if window is None and source.num_layers == _EXAONE_LAYERS_WITH_WINDOW:
        window = 4096
    return decoder(
        source,
        "Exaone4ForCausalLM",
        "exaone4",
        sliding_window=window,
        layer_types=layer_types(source, 4 if window else 1),
    )


def _exaone(source: ConfigSource) -> Fields:
    metadata = source.metadata
    key = "attention.layer_norm_rms_epsilon"
    has_own = metadata.get(key) is not None
    epsilon = metadata.number(key) if has_own else layer_norm_epsilon(source)
    return decoder(source, "ExaoneForCausalLM", "exaone", layer_norm_epsilon=epsilon)


def _hunyuan(source: ConfigSource) -> Fields:
    """Its rope.freq_base includes the scaling of theta."""
    return decoder(
        source,
        "HunYuanDenseV1ForCausalLM",
        "hunyuan_v1_dense",
        attention_bias=source.has("attn_q.bias"),
        use_qk_norm=source.has("attn_q_norm.weight"),
    )


def _arcee(source: ConfigSource) -> Fields:
    return decoder(
        source,
        "ArceeForCausalLM",
        "arcee",
        hidden_act="relu2",
        attention_bias=source.has("attn_q.bias"),
        mlp_bias=source.has("ffn_up.bias"),
    )


def _jais2(source: ConfigSource) -> Fields:
    return decoder(
        source,
        "Jais2ForCausalLM",
        "jais2",
        hidden_act="relu2",
        layer_norm_eps=layer_norm_epsilon(source),
        attention_bias=source.has("attn_q.bias"),
        mlp_bias=source.has("ffn_up.bias"),
    )


def _olmo(source: ConfigSource) -> Fields:
    clip = source.metadata.optional_number("attention.clamp_kqv")
    return decoder(source, "OlmoForCausalLM", "olmo", clip_qkv=clip or None)


def _orion(source: ConfigSource) -> Fields:
    """Its config names the epsilon of LayerNorms as that of RMSNorms."""
    return decoder(source, "OrionForCausalLM", "orion", rms_norm_eps=layer_norm_epsilon(source))


def _minicpm(source: ConfigSource) -> Fields:
    metadata = source.metadata
    depth_scale = _MINICPM_DEPTH_SCALE
    if (scale := metadata.optional_number("residual_scale")) is not None:
        depth_scale = scale * math.sqrt(source.num_layers)
    if metadata.optional_size("expert_count"):
        raise ValueError("MiniCPM with experts is not supported")
    return decoder(
        source,
        "MiniCPMForCausalLM",
        "minicpm",
        attention_bias=source.has("attn_q.bias"),
        scale_emb=metadata.number("embedding_scale", _MINICPM_EMBEDDING_SCALE),
        scale_depth=depth_scale,
        dim_model_base=_minicpm_base(source),
    )


def _minicpm_base(source: ConfigSource) -> int:
    """The number of columns whose logits have no factor."""
    scale = source.metadata.optional_number("logit_scale")
    if scale is None:
        return _MINICPM_BASE
    base = source.hidden_size / scale if scale > 0 else 0.0
    if round(base) < 1 or not math.isclose(base, round(base), rel_tol=1e-5):
        raise ValueError(
            f"minicpm.logit_scale must divide minicpm.embedding_length ({source.hidden_size}) "
            f"into an integer, not {scale}"
        )
    return round(base)


def _minicpm3(source: ConfigSource) -> Fields:
    metadata = source.metadata
    rope_dim = metadata.size("rope.dimension_count")
    query_dim = metadata.size("attention.key_length")
    if query_dim <= rope_dim:
        raise ValueError(f"its queries have {query_dim} columns, {rope_dim} of them rotated")
    return {
        "architectures": ["MiniCPM3ForCausalLM"],
        "model_type": "minicpm3",
        "hidden_size": source.hidden_size,
        "intermediate_size": metadata.size("feed_forward_length"),
        "num_hidden_layers": source.num_layers,
        "num_attention_heads": source.num_heads,
        "num_key_value_heads": source.num_kv_heads,
        "max_position_embeddings": metadata.size("context_length"),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "q_lora_rank": metadata.size("attention.q_lora_rank"),
        "kv_lora_rank": metadata.size("attention.kv_lora_rank"),
        "qk_nope_head_dim": query_dim - rope_dim,
        "qk_rope_head_dim": rope_dim,
        "v_head_dim": metadata.size(
            "attention.value_length", source.hidden_size // source.num_heads
        ),
        "scale_emb": _MINICPM_EMBEDDING_SCALE,
        "scale_depth": _MINICPM_DEPTH_SCALE,
        "dim_model_base": _MINICPM_BASE,
        **rope_settings(metadata, source.rope_factors),
    }


def granite_factors(source: ConfigSource) -> Fields:
    """The four factors of Granite 3 and 4."""
    metadata = source.metadata
    return {
        "attention_multiplier": metadata.number("attention.scale", source.head_dim**-0.5),
        "embedding_multiplier": metadata.number("embedding_scale", 1.0),
        "residual_multiplier": metadata.number("residual_scale", 1.0),
        "logits_scaling": metadata.number("logit_scale", 1.0),
    }


LLAMA_FAMILY: Mapping[str, Callable[[ConfigSource], Fields]] = {
    "ernie4_5": _ernie4_5,
    "seed_oss": _seed_oss,
    "exaone4": _exaone4,
    "exaone": _exaone,
    "hunyuan-dense": _hunyuan,
    "arcee": _arcee,
    "jais2": _jais2,
    "olmo": _olmo,
    "orion": _orion,
    "minicpm": _minicpm,
    "minicpm3": _minicpm3,
}
