"""GPT-BigCode (StarCoder, SantaCoder): GPT-2 with one KV head and matrices stored as [out, in]."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import AttentionSpec, Heads
from taco_worker.models.plan.builder import Module, layer_norm
from taco_worker.models.plan.decoder_block import DecoderSpec, Head, LayerNorms, Sizes, decoder
from taco_worker.models.plan.mlp_block import plain_mlp
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames

_LAYER = "h.{layer}"
# Files of the bare model lack the prefix; causal masks are stored as buffers.
_NAMES = TensorNames((("transformer.", ""),), (r"\.attn\.(masked_)?bias$",))


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.only("add_cross_attention", False)
    hidden_size, num_heads = fields.size("n_embd"), fields.size("n_head")
    multi_query = fields.flag("multi_query", default=True)
    heads = Heads(num_heads, 1 if multi_query else num_heads, hidden_size // num_heads)
    length = fields.size("n_positions")
    qkv = f"{_LAYER}.attn.c_attn"
    scaled = fields.flag("scale_attn_weights", default=True)
    size = fields.optional_size("n_inner") or 4 * hidden_size
    activation = fields.activation("activation_function", default="gelu_pytorch_tanh")
    up, down = Module(f"{_LAYER}.mlp.c_fc", size), Module(f"{_LAYER}.mlp.c_proj", hidden_size)
    spec = DecoderSpec(
        sizes=Sizes(fields.size("vocab_size"), hidden_size, fields.size("n_layer"), length),
        attention=AttentionSpec(
            heads,
            heads.packed(qkv) if multi_query else heads.grouped(qkv),
            Module(f"{_LAYER}.attn.c_proj", hidden_size),
            heads.head_dim**-0.5 if scaled else 1.0,
            qkv_bias=True,
            out_bias=True,
        ),
        mlp=plain_mlp(up, down, activation),
        norm=layer_norm(fields.epsilon("layer_norm_epsilon", default=1e-5)),
        norms=LayerNorms(attn_in=f"{_LAYER}.ln_1", mlp_in=f"{_LAYER}.ln_2"),
        head=Head(tied=fields.flag("tie_word_embeddings", default=True)),
        embedding="wte",
        positions=("wpe", length),
        final_norm="ln_f",
        names=_NAMES,
    )
    return decoder(architecture, spec)
