"""VaultGemma: Gemma 2 without the norms after its blocks."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.gemma2 import gemma2_spec


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    spec = gemma2_spec(fields)
    return decoder(
        architecture, replace(spec, norms=replace(spec.norms, attn_out=None, mlp_out=None))
    )
