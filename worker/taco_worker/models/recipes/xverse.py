"""XVERSE: Llama as it is, without biases."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.model_plan import ModelPlan


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.only("bias", False)
    fields.only("attention_bias", False)
    return decoder(architecture, llama_spec(fields))
