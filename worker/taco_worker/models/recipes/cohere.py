"""Command R: attention and MLP read one norm; interleaved rotation; scaled logits."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import HeadNorm
from taco_worker.models.plan.builder import layer_norm
from taco_worker.models.plan.decoder_block import (
    ATTENTION,
    DecoderSpec,
    LayerNorms,
    Rotary,
    decoder,
)
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.views import Flatten


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    # Command R's max_position_embeddings is only the rows of a table that nothing reads.
    length = fields.size("model_max_length", "max_position_embeddings")
    fields = ConfigFields({**fields.values, "max_position_embeddings": length})
    spec = cohere_spec(fields, default_theta=500_000.0)
    heads = spec.attention.heads
    if fields.flag("use_qk_norm", default=False):
        norm = HeadNorm(
            f"{ATTENTION}.q_norm",
            f"{ATTENTION}.k_norm",
            spec.norm,
            query_views=(Flatten((heads.num_heads, heads.head_dim)),),
            key_views=(Flatten((heads.num_kv_heads, heads.head_dim)),),
        )
        spec = replace(spec, attention=replace(spec.attention, head_norm=norm))
    return decoder(architecture, spec)


def cohere_spec(
    fields: ConfigFields, *, rotary: Rotary | None = None, default_theta: float = 10_000.0
) -> DecoderSpec:
    fields.only("use_parallel_block", True)
    fields.only("use_gated_activation", True)
    bias = fields.flag("attention_bias", default=False)
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        default_theta=default_theta,
        tied=True,
        rotary=rotary,
        norm=layer_norm(fields.epsilon("layer_norm_eps", default=1e-5), bias=False),
        norms=LayerNorms(mlp_in=None, sums="parallel"),
    )
    assert spec.rotary is not None
    scale = fields.number("logit_scale", default=0.0625)
    return replace(
        spec,
        rotary=replace(spec.rotary, style="interleaved"),
        head=replace(spec.head, scale=scale),
    )
