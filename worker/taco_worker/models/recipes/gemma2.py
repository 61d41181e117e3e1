"""Gemma 2: Gemma with norms around blocks, caps, and windows in every other layer."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import DecoderSpec, decoder
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.sliding_windows import windows_by_type
from taco_worker.models.recipes.gemma import gemma_spec, with_caps


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    return decoder(architecture, gemma2_spec(fields))


def gemma2_spec(fields: ConfigFields) -> DecoderSpec:
    fields.needs("num_key_value_heads")
    activation = fields.activation("hidden_activation", default="gelu_pytorch_tanh")
    windows = windows_by_type(fields, period=2, default_window=4096)
    return with_caps(fields, gemma_spec(fields, activation, windows=windows), 50.0, 30.0)
