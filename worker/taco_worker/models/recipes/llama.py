"""Llama 1 to 3, and the base of recipes that differ from it in a few options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taco_worker.models.decoder_config import DecoderConfig
from taco_worker.models.recipe import Recipe, WeightMap, fused, whole
from taco_worker.models.rope import scaled_max_position_embeddings
from taco_worker.models.rope_parsing import parse_rotary


def decoder_config(hf: Mapping[str, Any]) -> DecoderConfig:
    num_heads = hf["num_attention_heads"]
    num_layers = hf["num_hidden_layers"]
    head_dim = hf.get("head_dim") or hf["hidden_size"] // num_heads
    rotary = parse_rotary(hf)
    attention_bias = hf.get("attention_bias", False)
    return DecoderConfig(
        vocab_size=hf["vocab_size"],
        hidden_size=hf["hidden_size"],
        embedding_size=hf["hidden_size"],
        intermediate_size=hf["intermediate_size"],
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=hf.get("num_key_value_heads") or num_heads,
        head_dim=head_dim,
        max_position_embeddings=scaled_max_position_embeddings(
            rotary, hf["max_position_embeddings"]
        ),
        positions=rotary,
        norm="rms",
        norm_eps=hf.get("rms_norm_eps", 1e-6),
        pre_norm=True,
        final_norm=True,
        activation=hf.get("hidden_act", "silu"),
        gated_mlp=True,
        qkv_bias=attention_bias,
        attn_out_bias=attention_bias,
        mlp_bias=hf.get("mlp_bias", False),
        sliding_windows=(None,) * num_layers,
        attention_scale=head_dim**-0.5,
        tied_embeddings=hf.get("tie_word_embeddings", False),
    )


def weight_map(config: DecoderConfig) -> WeightMap:
    query_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim
    slots = whole("model.embed_tokens", "embed_tokens", bias=False)
    for layer in range(config.num_layers):
        source, target = f"model.layers.{layer}", f"layers.{layer}"
        slots |= whole(f"{source}.input_layernorm", f"{target}.attn_norm", bias=False)
        slots |= fused(
            {
                f"{source}.self_attn.q_proj": query_size,
                f"{source}.self_attn.k_proj": kv_size,
                f"{source}.self_attn.v_proj": kv_size,
            },
            f"{target}.attn.qkv_proj",
            bias=config.qkv_bias,
        )
        slots |= whole(
            f"{source}.self_attn.o_proj", f"{target}.attn.out_proj", bias=config.attn_out_bias
        )
        slots |= whole(f"{source}.post_attention_layernorm", f"{target}.mlp_norm", bias=False)
        slots |= fused(
            {
                f"{source}.mlp.gate_proj": config.intermediate_size,
                f"{source}.mlp.up_proj": config.intermediate_size,
            },
            f"{target}.mlp.gate_up_proj",
            bias=config.mlp_bias,
        )
        slots |= whole(f"{source}.mlp.down_proj", f"{target}.mlp.down_proj", bias=config.mlp_bias)
    slots |= whole("model.norm", "final_norm", bias=False)
    if not config.tied_embeddings:
        slots |= whole("lm_head", "lm_head", bias=False)
    return slots


def canonical_name(name: str, config: DecoderConfig) -> str | None:
    if name.endswith(".rotary_emb.inv_freq"):
        return None
    if name == "lm_head.weight" and config.tied_embeddings:
        return None
    return name


RECIPE = Recipe(decoder_config, weight_map, canonical_name)
