"""Mistral 7B and similar models: Llama with a sliding window in every layer."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.llama import llama


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    windows = [fields.optional_size("sliding_window")] * fields.size("num_hidden_layers")
    return llama(fields, architecture, windows=windows)
