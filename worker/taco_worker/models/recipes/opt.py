"""OPT: learned positions, LayerNorm and ReLU; OPT-350m has post-norm and narrow embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taco_worker.models.decoder_config import DecoderConfig, LearnedPositions
from taco_worker.models.recipe import Recipe, WeightMap, fused, whole

# The first two rows of the position table are unused: fairseq numbers positions from the padding
# index.
_POSITION_OFFSET = 2


def decoder_config(hf: Mapping[str, Any]) -> DecoderConfig:
    if not hf.get("layer_norm_elementwise_affine", True):
        raise ValueError("OPT without layer norm weights is not supported")
    hidden_size, num_heads = hf["hidden_size"], hf["num_attention_heads"]
    pre_norm = hf.get("do_layer_norm_before", True)
    bias = hf.get("enable_bias", True)
    return DecoderConfig(
        vocab_size=hf["vocab_size"],
        hidden_size=hidden_size,
        embedding_size=hf.get("word_embed_proj_dim") or hidden_size,
        intermediate_size=hf["ffn_dim"],
        num_layers=hf["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        max_position_embeddings=hf["max_position_embeddings"],
        positions=LearnedPositions(hf["max_position_embeddings"], _POSITION_OFFSET),
        norm="layer",
        norm_eps=1e-5,
        pre_norm=pre_norm,
        final_norm=pre_norm and not hf.get("_remove_final_layer_norm", False),
        activation=hf.get("activation_function", "relu"),
        gated_mlp=False,
        qkv_bias=bias,
        attn_out_bias=bias,
        mlp_bias=bias,
        sliding_windows=(None,) * hf["num_hidden_layers"],
        attention_scale=(hidden_size // num_heads) ** -0.5,
        tied_embeddings=hf.get("tie_word_embeddings", True),
    )


def weight_map(config: DecoderConfig) -> WeightMap:
    slots = whole("decoder.embed_tokens", "embed_tokens", bias=False)
    slots |= whole("decoder.embed_positions", "embed_positions", bias=False)
    if config.embedding_size != config.hidden_size:
        slots |= whole("decoder.project_in", "embed_in_proj", bias=False)
        slots |= whole("decoder.project_out", "embed_out_proj", bias=False)
    for layer in range(config.num_layers):
        source, target = f"decoder.layers.{layer}", f"layers.{layer}"
        slots |= whole(f"{source}.self_attn_layer_norm", f"{target}.attn_norm", bias=True)
        slots |= fused(
            {f"{source}.self_attn.{name}_proj": config.hidden_size for name in "qkv"},
            f"{target}.attn.qkv_proj",
            bias=config.qkv_bias,
        )
        slots |= whole(
            f"{source}.self_attn.out_proj", f"{target}.attn.out_proj", bias=config.attn_out_bias
        )
        slots |= whole(f"{source}.final_layer_norm", f"{target}.mlp_norm", bias=True)
        slots |= whole(f"{source}.fc1", f"{target}.mlp.up_proj", bias=config.mlp_bias)
        slots |= whole(f"{source}.fc2", f"{target}.mlp.down_proj", bias=config.mlp_bias)
    if config.final_norm:
        slots |= whole("decoder.final_layer_norm", "final_norm", bias=True)
    if not config.tied_embeddings:
        slots |= whole("lm_head", "lm_head", bias=False)
    return slots


def canonical_name(name: str, config: DecoderConfig) -> str | None:
    """Add the prefix of OPTForCausalLM, which files of the bare OPTModel lack."""
    if name == "lm_head.weight" and config.tied_embeddings:
        return None
    return name.removeprefix("model.")


RECIPE = Recipe(decoder_config, weight_map, canonical_name)
