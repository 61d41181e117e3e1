"""BioGPT: OPT with scaled embeddings and GELU."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import AttentionSpec, Heads, attention
from taco_worker.models.plan.builder import Module, PlanBuilder, layer_norm
from taco_worker.models.plan.mlp_block import mlp, plain_mlp
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames

# As in OPT, the first two rows of the position table are unused.
_POSITION_OFFSET = 2
_LAYER = "biogpt.layers.{layer}"
# The published code does not read layer_norm_eps.
_NORM = layer_norm(1e-5)


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    hidden_size, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    length, size = fields.size("max_position_embeddings"), fields.size("intermediate_size")
    heads = Heads(num_heads, num_heads, hidden_size // num_heads)
    spec = AttentionSpec(
        heads,
        heads.separate(*(f"{_LAYER}.self_attn.{name}_proj" for name in "qkv")),
        Module(f"{_LAYER}.self_attn.out_proj", hidden_size),
        heads.head_dim**-0.5,
        qkv_bias=True,
        out_bias=True,
    )
    up, down = Module(f"{_LAYER}.fc1", size), Module(f"{_LAYER}.fc2", hidden_size)
    feed_forward = plain_mlp(up, down, fields.activation("hidden_act", default="gelu"))
    is_scaled = fields.flag("scale_embedding", default=True)
    b = PlanBuilder(vocab_size=fields.size("vocab_size"), hidden_size=hidden_size)
    b.embed("biogpt.embed_tokens", scale=hidden_size**0.5 if is_scaled else 1.0)
    num_rows = length + _POSITION_OFFSET
    b.embed_positions("biogpt.embed_positions", num_rows, offset=_POSITION_OFFSET)
    for _ in range(fields.size("num_hidden_layers")):
        with b.layer():
            h = b.norm(b.stream, "attn_norm", f"{_LAYER}.self_attn_layer_norm", _NORM)
            b.residual(attention(b, h, spec))
            h = b.norm(b.stream, "mlp_norm", f"{_LAYER}.final_layer_norm", _NORM)
            b.residual(mlp(b, h, feed_forward))
    b.final_norm("biogpt.layer_norm", _NORM)
    b.head("output_projection", tied=fields.flag("tie_word_embeddings", default=True))
    return b.build(architecture, length, TensorNames())
