"""FlexOlmo: OLMo 2 with OLMoE's experts in every layer."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.olmo2 import olmo2
from taco_worker.models.recipes.qwen2_moe import qwen_experts


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields = ConfigFields({"num_experts": 7, "num_experts_per_tok": 5, **fields.values})
    experts = qwen_experts(fields, fields.size("intermediate_size"))
    mixtures = [experts] * fields.size("num_hidden_layers")
    spec = llama_spec(fields, default_theta=500_000.0, mixtures=mixtures)
    return decoder(architecture, olmo2(fields, spec))
