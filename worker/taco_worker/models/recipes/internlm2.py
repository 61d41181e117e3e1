"""InternLM 2: Llama with projections grouped by KV head, and its own tensor names."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import Module
from taco_worker.models.plan.decoder_block import LAYER, LayerNorms, decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.mlp_block import gated_mlp
from taco_worker.models.plan.model_plan import ModelPlan

_NORMS = LayerNorms(attn_in=f"{LAYER}.attention_norm", mlp_in=f"{LAYER}.ffn_norm")


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    bias = fields.flag("bias", default=True)
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        norms=_NORMS,
        embedding="model.tok_embeddings",
    )
    hidden_size = spec.sizes.hidden_size
    attention = replace(
        spec.attention,
        qkv=spec.attention.heads.grouped(f"{LAYER}.attention.wqkv"),
        out=Module(f"{LAYER}.attention.wo", hidden_size),
    )
    mlp = gated_mlp(
        f"{LAYER}.feed_forward",
        spec.mlp.size,
        hidden_size,
        spec.mlp.activation,
        names=("w1", "w3", "w2"),
    )
    head = replace(spec.head, module="output")
    return decoder(architecture, replace(spec, attention=attention, mlp=mlp, head=head))
