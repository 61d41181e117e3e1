"""BLOOM: ALiBi instead of position embeddings, and a norm of the embeddings."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import AttentionSpec, Heads, alibi_slopes
from taco_worker.models.plan.builder import Module, layer_norm
from taco_worker.models.plan.decoder_block import DecoderSpec, Head, LayerNorms, Sizes, decoder
from taco_worker.models.plan.mlp_block import plain_mlp
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames

_LAYER = "h.{layer}"
# Files of the bare model lack the prefix.
_NAMES = TensorNames((("transformer.", ""),))
# ALiBi has no longest sequence; BLOOM was trained with this one.
_LENGTH = 2048


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    hidden_size = fields.size("hidden_size", "n_embed")
    num_heads = fields.size("n_head", "num_attention_heads")
    heads = Heads(num_heads, num_heads, hidden_size // num_heads)
    normed = fields.flag("apply_residual_connection_post_layernorm", default=False)
    up = Module(f"{_LAYER}.mlp.dense_h_to_4h", 4 * hidden_size)
    down = Module(f"{_LAYER}.mlp.dense_4h_to_h", hidden_size)
    spec = DecoderSpec(
        sizes=Sizes(
            fields.size("vocab_size"),
            hidden_size,
            fields.size("n_layer", "num_hidden_layers"),
            fields.size("seq_length", default=_LENGTH),
        ),
        attention=AttentionSpec(
            heads,
            heads.grouped(f"{_LAYER}.self_attention.query_key_value"),
            Module(f"{_LAYER}.self_attention.dense", hidden_size),
            heads.head_dim**-0.5,
            qkv_bias=True,
            out_bias=True,
            alibi=alibi_slopes(num_heads),
        ),
        mlp=plain_mlp(up, down, "gelu_tanh"),
        norm=layer_norm(fields.epsilon("layer_norm_epsilon", default=1e-5)),
        norms=LayerNorms(
            attn_in=f"{_LAYER}.input_layernorm",
            mlp_in=f"{_LAYER}.post_attention_layernorm",
            sums="normed" if normed else "serial",
        ),
        head=Head(tied=fields.flag("tie_word_embeddings", default=True)),
        embedding="word_embeddings",
        embedding_norm="word_embeddings_layernorm",
        final_norm="ln_f",
        names=_NAMES,
    )
    return decoder(architecture, spec)
