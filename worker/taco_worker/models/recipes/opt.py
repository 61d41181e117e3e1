"""OPT: learned positions, LayerNorm and ReLU; OPT-350m has post-norm and narrow embeddings."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import AttentionSpec, Heads, attention
from taco_worker.models.plan.builder import Module, NormSpec, PlanBuilder
from taco_worker.models.plan.mlp_block import mlp, plain_mlp
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames

# The first two rows of the position table are unused: fairseq numbers positions from the padding
# index.
_POSITION_OFFSET = 2
# Files of the bare OPTModel lack the prefix.
_NAMES = TensorNames((("model.", ""),))


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    hidden_size, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    length, size = fields.size("max_position_embeddings"), fields.size("ffn_dim")
    embedding_size = fields.optional_size("word_embed_proj_dim") or hidden_size
    pre_norm = fields.flag("do_layer_norm_before", default=True)
    bias = fields.flag("enable_bias", default=True)
    activation = fields.activation("activation_function", default="relu")
    heads = Heads(num_heads, num_heads, hidden_size // num_heads)
    affine = fields.flag("layer_norm_elementwise_affine", default=True)
    norm = NormSpec("layer", 1e-5, has_weight=affine, has_bias=affine)
    layer = "decoder.layers.{layer}"
    projects = embedding_size != hidden_size
    b = PlanBuilder(
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden_size,
        embedding_size=embedding_size,
    )
    b.embed("decoder.embed_tokens", project="decoder.project_in" if projects else None)
    num_rows = length + _POSITION_OFFSET
    b.embed_positions("decoder.embed_positions", num_rows, offset=_POSITION_OFFSET)
    spec = AttentionSpec(
        heads,
        heads.separate(*(f"{layer}.self_attn.{name}_proj" for name in "qkv")),
        Module(f"{layer}.self_attn.out_proj", hidden_size),
        heads.head_dim**-0.5,
        qkv_bias=bias,
        out_bias=bias,
    )
    up, down = Module(f"{layer}.fc1", size), Module(f"{layer}.fc2", hidden_size)
    for _ in range(fields.size("num_hidden_layers")):
        with b.layer():
            for name, module, block in (
                ("attn_norm", "self_attn_layer_norm", lambda x: attention(b, x, spec)),
                (
                    "mlp_norm",
                    "final_layer_norm",
                    lambda x: mlp(b, x, plain_mlp(up, down, activation, bias=bias)),
                ),
            ):
                x = b.stream
                if pre_norm:
                    x = b.norm(x, name, f"{layer}.{module}", norm)
                b.residual(block(x))
                if not pre_norm:
                    b.norm(b.stream, name, f"{layer}.{module}", norm, out=b.stream)
    if pre_norm and not fields.flag("_remove_final_layer_norm", default=False):
        b.final_norm("decoder.final_layer_norm", norm)
    b.head(
        "lm_head",
        tied=fields.flag("tie_word_embeddings", default=True),
        project="decoder.project_out" if projects else None,
    )
    return b.build(architecture, length, _NAMES)
