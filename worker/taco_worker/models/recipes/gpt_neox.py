"""GPT-NeoX and Pythia: attention and MLP side by side, each with its own norm."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import AttentionSpec, Heads
from taco_worker.models.plan.builder import Module, layer_norm
from taco_worker.models.plan.decoder_block import LayerNorms, decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.mlp_block import plain_mlp
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames

_LAYER = "gpt_neox.layers.{layer}"
# Masks and frequencies are stored as buffers; transformers 5 renames the LM head.
_NAMES = TensorNames(
    (("lm_head.", "embed_out."),),
    (r"\.attention\.(masked_)?bias$", r"\.rotary_emb\.inv_freq$"),
)


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    hidden_size, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    heads = Heads(num_heads, num_heads, hidden_size // num_heads)
    bias = fields.flag("attention_bias", default=True)
    attention = AttentionSpec(
        heads,
        heads.grouped(f"{_LAYER}.attention.query_key_value"),
        Module(f"{_LAYER}.attention.dense", hidden_size),
        heads.head_dim**-0.5,
        qkv_bias=bias,
        out_bias=bias,
    )
    up = Module(f"{_LAYER}.mlp.dense_h_to_4h", fields.size("intermediate_size"))
    down = Module(f"{_LAYER}.mlp.dense_4h_to_h", hidden_size)
    parallel = fields.flag("use_parallel_residual", default=True)
    spec = llama_spec(
        fields,
        default_partial=0.25,
        attention=attention,
        mlp=plain_mlp(up, down, fields.activation("hidden_act", default="gelu")),
        norm=layer_norm(fields.epsilon("layer_norm_eps", default=1e-5)),
        norms=LayerNorms(
            attn_in=f"{_LAYER}.input_layernorm",
            mlp_in=f"{_LAYER}.post_attention_layernorm",
            sums="parallel" if parallel else "serial",
        ),
        embedding="gpt_neox.embed_in",
        final_norm="gpt_neox.final_layer_norm",
        names=_NAMES,
    )
    return decoder(architecture, replace(spec, head=replace(spec.head, module="embed_out")))
