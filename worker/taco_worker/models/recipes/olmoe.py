"""OLMoE: a mixture of experts in every layer, and norms of whole queries and keys."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import HeadNorm
from taco_worker.models.plan.decoder_block import ATTENTION, decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.qwen2_moe import qwen_experts


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    bias = fields.flag("attention_bias", default=False)
    experts = qwen_experts(fields, fields.size("intermediate_size"))
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        eps=1e-5,
        mixtures=[experts] * fields.size("num_hidden_layers"),
    )
    norm = HeadNorm(f"{ATTENTION}.q_norm", f"{ATTENTION}.k_norm", spec.norm, is_per_head=False)
    clip = None if fields.get("clip_qkv") is None else fields.positive("clip_qkv")
    attention = replace(spec.attention, head_norm=norm, clip=clip)
    return decoder(architecture, replace(spec, attention=attention))
