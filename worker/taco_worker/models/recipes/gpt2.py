"""GPT-2: learned positions, fused QKV in the checkpoint, matrices stored as [in, out]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taco_worker.models.decoder_config import DecoderConfig, LearnedPositions
from taco_worker.models.recipe import Recipe, WeightMap, whole


def decoder_config(hf: Mapping[str, Any]) -> DecoderConfig:
    if hf.get("scale_attn_by_inverse_layer_idx", False):
        raise ValueError("GPT-2 with attention scaled by layer is not supported")
    if hf.get("add_cross_attention", False):
        raise ValueError("GPT-2 with cross attention is not supported")
    hidden_size, num_heads = hf["n_embd"], hf["n_head"]
    head_dim = hidden_size // num_heads
    return DecoderConfig(
        vocab_size=hf["vocab_size"],
        hidden_size=hidden_size,
        embedding_size=hidden_size,
        intermediate_size=hf.get("n_inner") or 4 * hidden_size,
        num_layers=hf["n_layer"],
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        max_position_embeddings=hf["n_positions"],
        positions=LearnedPositions(hf["n_positions"], offset=0),
        norm="layer",
        norm_eps=hf.get("layer_norm_epsilon", 1e-5),
        pre_norm=True,
        final_norm=True,
        activation=hf.get("activation_function", "gelu_new"),
        gated_mlp=False,
        qkv_bias=True,
        attn_out_bias=True,
        mlp_bias=True,
        sliding_windows=(None,) * hf["n_layer"],
        attention_scale=head_dim**-0.5 if hf.get("scale_attn_weights", True) else 1.0,
        tied_embeddings=hf.get("tie_word_embeddings", True),
    )


def weight_map(config: DecoderConfig) -> WeightMap:
    slots = whole("wte", "embed_tokens", bias=False)
    slots |= whole("wpe", "embed_positions", bias=False)
    for layer in range(config.num_layers):
        source, target = f"h.{layer}", f"layers.{layer}"
        slots |= whole(f"{source}.ln_1", f"{target}.attn_norm", bias=True)
        slots |= _conv1d(f"{source}.attn.c_attn", f"{target}.attn.qkv_proj")
        slots |= _conv1d(f"{source}.attn.c_proj", f"{target}.attn.out_proj")
        slots |= whole(f"{source}.ln_2", f"{target}.mlp_norm", bias=True)
        slots |= _conv1d(f"{source}.mlp.c_fc", f"{target}.mlp.up_proj")
        slots |= _conv1d(f"{source}.mlp.c_proj", f"{target}.mlp.down_proj")
    slots |= whole("ln_f", "final_norm", bias=True)
    if not config.tied_embeddings:
        slots |= whole("lm_head", "lm_head", bias=False)
    return slots


def _conv1d(source: str, target: str) -> WeightMap:
    return whole(source, target, bias=True, transpose=True)


def canonical_name(name: str, config: DecoderConfig) -> str | None:
    """Drop causal masks, stored as buffers; add the prefix that bare GPT2Model files lack."""
    if name.endswith((".attn.bias", ".attn.masked_bias")):
        return None
    if name == "lm_head.weight" and config.tied_embeddings:
        return None
    return name.removeprefix("transformer.")


RECIPE = Recipe(decoder_config, weight_map, canonical_name)
