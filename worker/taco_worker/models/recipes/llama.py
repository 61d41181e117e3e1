"""Llama 1 to 3, and the base of recipes that differ from it in a few options."""

from __future__ import annotations

from collections.abc import Sequence

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import AttentionSpec, Heads, RopeSpec, attention
from taco_worker.models.plan.builder import Module, PlanBuilder, rms
from taco_worker.models.plan.mlp_block import gated_mlp, mlp
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames
from taco_worker.models.rope import scaled_max_position_embeddings
from taco_worker.models.rope_parsing import parse_rotary

TENSOR_NAMES = TensorNames(ignored=(r"\.rotary_emb\.inv_freq$",))
SELF_ATTENTION = "model.layers.{layer}.self_attn"


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    bias = fields.flag("attention_bias", default=False)
    return llama(fields, architecture, qkv_bias=bias, out_bias=bias)


def llama(
    fields: ConfigFields,
    architecture: str,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    windows: Sequence[int | None] | None = None,
) -> ModelPlan:
    """`windows`: per layer, the number of tokens that a token sees; None is all."""
    hidden_size = fields.size("hidden_size")
    heads = read_heads(fields)
    size, activation = (
        fields.size("intermediate_size"),
        fields.activation("hidden_act", default="silu"),
    )
    mlp_bias = fields.flag("mlp_bias", default=False)
    norm = rms(fields.epsilon("rms_norm_eps", default=1e-6))
    rotary = parse_rotary(fields.values)
    b = PlanBuilder(vocab_size=fields.size("vocab_size"), hidden_size=hidden_size)
    if rotary.partial_rotary_factor != 1.0:
        raise ValueError(
            f"partial_rotary_factor {rotary.partial_rotary_factor} is not supported, only 1"
        )
    rotary_dim = rotary.rotary_dim(heads.head_dim)
    rope = RopeSpec(b.rope_table("rope", rotary, rotary_dim), rotary_dim)
    b.embed("model.embed_tokens")
    for _ in range(fields.size("num_hidden_layers")):
        with b.layer() as layer:
            h = b.norm(b.stream, "attn_norm", "model.layers.{layer}.input_layernorm", norm)
            spec = AttentionSpec(
                heads,
                heads.separate(*(f"{SELF_ATTENTION}.{name}_proj" for name in "qkv")),
                Module(f"{SELF_ATTENTION}.o_proj", hidden_size),
                heads.head_dim**-0.5,
                rope,
                qkv_bias=qkv_bias,
                out_bias=out_bias,
                window=None if windows is None else windows[layer],
            )
            b.residual(attention(b, h, spec))
            h = b.norm(b.stream, "mlp_norm", "model.layers.{layer}.post_attention_layernorm", norm)
            prefix = "model.layers.{layer}.mlp"
            b.residual(mlp(b, h, gated_mlp(prefix, size, hidden_size, activation, bias=mlp_bias)))
    b.final_norm("model.norm", norm)
    b.head("lm_head", tied=fields.flag("tie_word_embeddings", default=False))
    length = fields.size("max_position_embeddings")
    return b.build(architecture, scaled_max_position_embeddings(rotary, length), TENSOR_NAMES)


def read_heads(fields: ConfigFields) -> Heads:
    num_heads = fields.size("num_attention_heads")
    head_dim = fields.optional_size("head_dim") or fields.size("hidden_size") // num_heads
    return Heads(num_heads, fields.size("num_key_value_heads", default=num_heads), head_dim)
