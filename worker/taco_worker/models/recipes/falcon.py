"""Falcon: 7B, 40B, 11B and RW, and the class RWForCausalLM that the first two had."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import AttentionSpec, Heads, alibi_slopes
from taco_worker.models.plan.builder import Module, layer_norm
from taco_worker.models.plan.decoder_block import DecoderSpec, Head, LayerNorms, Rotary, Sizes
from taco_worker.models.plan.decoder_block import decoder as build
from taco_worker.models.plan.mlp_block import plain_mlp
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames
from taco_worker.models.rope import scaled_max_position_embeddings
from taco_worker.models.rope_parsing import parse_rotary

_LAYER = "h.{layer}"
_NAMES = TensorNames((("transformer.", ""),), (r"\.rotary_emb\.inv_freq$",))


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.only("apply_residual_connection_post_layernorm", False)
    hidden_size = fields.size("hidden_size", "n_embed")
    num_heads = fields.size("num_attention_heads", "n_head")
    # The first configs of 40B do not have the field, but its model_type.
    is_new = fields.flag(
        "new_decoder_architecture", default=fields.get("model_type") == "RefinedWeb"
    )
    groups = fields.optional_size("num_kv_heads", "n_head_kv") if is_new else None
    multi_query = not is_new and fields.flag("multi_query", default=True)
    heads = Heads(num_heads, 1 if multi_query else groups or num_heads, hidden_size // num_heads)
    qkv = f"{_LAYER}.self_attention.query_key_value"
    bias, scale = fields.flag("bias", default=False), heads.head_dim**-0.5
    attention = AttentionSpec(
        heads,
        heads.packed(qkv) if multi_query else heads.grouped(qkv),
        Module(f"{_LAYER}.self_attention.dense", hidden_size),
        scale,
        qkv_bias=bias,
        out_bias=bias,
    )
    length = fields.size("max_position_embeddings", default=2048)
    rotary = None
    if fields.flag("alibi", default=False):
        # Falcon adds the biases before it scales.
        slopes = tuple(scale * slope for slope in alibi_slopes(num_heads))
        attention = replace(attention, alibi=slopes)
    else:
        settings = parse_rotary({**fields.values, "max_position_embeddings": length})
        settings.check_whole_heads()
        rotary = Rotary(settings={"rope": settings})
        length = scaled_max_position_embeddings(settings, length)
    size = fields.optional_size("ffn_hidden_size") or 4 * hidden_size
    up = Module(f"{_LAYER}.mlp.dense_h_to_4h", size)
    down = Module(f"{_LAYER}.mlp.dense_4h_to_h", hidden_size)
    num_layers = fields.size("num_hidden_layers", "n_layer")
    spec = DecoderSpec(
        sizes=Sizes(fields.size("vocab_size"), hidden_size, num_layers, length),
        attention=attention,
        mlp=plain_mlp(up, down, fields.activation("activation", default="gelu"), bias=bias),
        norm=layer_norm(fields.epsilon("layer_norm_epsilon", default=1e-5)),
        norms=_norms(fields, is_new),
        rotary=rotary,
        head=Head(tied=fields.flag("tie_word_embeddings", default=True)),
        embedding="word_embeddings",
        final_norm="ln_f",
        names=_NAMES,
    )
    return build(architecture, spec)


def _norms(fields: ConfigFields, is_new: bool) -> LayerNorms:
    if is_new and fields.size("num_ln_in_parallel_attn", default=2) == 2:
        names = f"{_LAYER}.ln_attn", f"{_LAYER}.ln_mlp"
        return LayerNorms(attn_in=names[0], mlp_in=names[1], sums="parallel")
    if is_new or fields.flag("parallel_attn", default=True):
        return LayerNorms(attn_in=f"{_LAYER}.input_layernorm", mlp_in=None, sums="parallel")
    names = f"{_LAYER}.input_layernorm", f"{_LAYER}.post_attention_layernorm"
    return LayerNorms(attn_in=names[0], mlp_in=names[1])
