"""Phi 4 multimodal, the text part: Phi 4 mini without the adapters for images and audio."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import LLAMA_NAMES, decoder
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.phi3 import phi3_spec

_NAMES = replace(
    LLAMA_NAMES,
    ignored=(*LLAMA_NAMES.ignored, r"^model\.embed_tokens_extend\.", r"\.lora_[AB]\.\w+\.weight$"),
    removed=(".base_layer",),
)


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    for name in ("mlp_bias", "lm_head_bias"):
        fields.only(name, False)
    for name in ("full_attn_mod", "interpolate_factor"):
        fields.only(name, 1)
    return decoder(architecture, phi3_spec(fields, names=_NAMES))
