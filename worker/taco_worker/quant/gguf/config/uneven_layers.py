"""Makes the fields of a config.json for models whose layers have unlike sizes, by architecture.

Source: as `architectures`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from taco_worker.quant.gguf.config.mixtures import routed_experts
from taco_worker.quant.gguf.config.rope_settings import rope_settings
from taco_worker.quant.gguf.config.source import ConfigSource, Fields


def _mimo2(source: ConfigSource) -> Fields:
    """MiMo-V2-Flash: layers with a window have sinks and more KV heads."""
    metadata = source.metadata
    layers = range(source.num_layers)
    pattern = [metadata.count("attention.sliding_window_pattern", i) for i in layers]
    kv_heads = [metadata.count("attention.head_count_kv", i) for i in layers]
    head_dim = metadata.size("attention.key_length")
    value_dim = metadata.size("attention.value_length")
    rotary_dim = metadata.size("rope.dimension_count", head_dim)
    return {
        "architectures": ["MiMoV2FlashForCausalLM"],
        "model_type": "mimo_v2_flash",
        "hidden_size": source.hidden_size,
        "intermediate_size": metadata.size("feed_forward_length"),
        "num_hidden_layers": source.num_layers,
        "num_attention_heads": source.num_heads,
        "num_key_value_heads": _shared(kv_heads, pattern, has_window=False),
        "swa_num_key_value_heads": _shared(kv_heads, pattern, has_window=True),
        "head_dim": head_dim,
        "v_head_dim": value_dim,
        "partial_rotary_factor": rotary_dim / head_dim,
        "max_position_embeddings": metadata.size("context_length"),
        "layernorm_epsilon": metadata.number("attention.layer_norm_rms_epsilon"),
        "attention_value_scale": metadata.optional_number("attention.value_scale") or None,
        "hybrid_layer_pattern": pattern,
        "moe_layer_freq": [int(f"blk.{i}.ffn_gate_inp.weight" in source.tensors) for i in layers],
        "sliding_window_size": metadata.size("attention.sliding_window"),
        "swa_rope_theta": metadata.number("rope.freq_base_swa"),
        **routed_experts(source),
        "norm_topk_prob": True,
        **rope_settings(metadata, source.rope_factors),
    }


def _shared(counts: Sequence[int], pattern: Sequence[int], *, has_window: bool) -> int:
    """The number that all layers with a window, or all without one, have.

    Raises:
        ValueError: they have several, or there is no such layer.
    """
    kind = "with" if has_window else "without"
    found = {one for one, flag in zip(counts, pattern, strict=True) if bool(flag) == has_window}
    if len(found) != 1:
        raise ValueError(
            f"its layers {kind} a window have {sorted(found)} KV heads, not one number"
        )
    return found.pop()


def _deci(source: ConfigSource) -> Fields:
    """DeciLM and Nemotron-NAS: layers without attention or without an MLP have the number 0."""
    metadata, layers = source.metadata, range(source.num_layers)
    heads = [metadata.count("attention.head_count", i) for i in layers]
    kv_heads = [metadata.count("attention.head_count_kv", i, heads[i]) for i in layers]
    sizes = [metadata.count("feed_forward_length", i) for i in layers]
    num_heads = max(heads)
    if unlike := sorted({*heads} - {0, num_heads}):
        raise ValueError(f"deci.attention.head_count has {unlike} and {num_heads}, not one number")
    if not num_heads:
        raise ValueError("none of its layers has attention")
    head_dim = source.hidden_size // num_heads
    return {
        "architectures": ["DeciLMForCausalLM"],
        "model_type": "nemotron-nas",
        "hidden_size": source.hidden_size,
        "num_hidden_layers": source.num_layers,
        "num_attention_heads": num_heads,
        "head_dim": metadata.size("attention.key_length", head_dim),
        "max_position_embeddings": metadata.size("context_length"),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "attention_bias": any(name.endswith(".attn_q.bias") for name in source.tensors),
        "mlp_bias": any(name.endswith(".ffn_up.bias") for name in source.tensors),
        "block_configs": [
            {"attention": _deci_attention(*own), "ffn": _deci_mlp(size)}
            for *own, size in zip(heads, kv_heads, sizes, strict=True)
        ],
        **rope_settings(metadata, source.rope_factors),
    }


def _deci_attention(num_heads: int, num_kv_heads: int) -> dict[str, Any]:
    if not num_heads:
        return {"n_heads_in_group": None, "no_op": True}
    if not num_kv_heads:
        raise ValueError("layers with one matrix instead of attention are not supported")
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_kv_heads} KV heads do not divide {num_heads} heads")
    return {"n_heads_in_group": num_heads // num_kv_heads, "no_op": False}


def _deci_mlp(size: int) -> dict[str, Any]:
    return {"intermediate_size": size or None, "no_op": not size}


UNEVEN_LAYERS: Mapping[str, Callable[[ConfigSource], Fields]] = {
    "mimo2": _mimo2,
    "deci": _deci,
}
