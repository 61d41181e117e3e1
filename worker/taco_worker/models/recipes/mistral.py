"""Mistral 7B and similar models: Llama with a sliding window in every layer."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.model_plan import ModelPlan

# Of configs without the field; null is no window.
_DEFAULT_WINDOW = 4096


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    window = fields.optional_size("sliding_window")
    if "sliding_window" not in fields.values:
        window = _DEFAULT_WINDOW
    windows = [window] * fields.size("num_hidden_layers")
    return decoder(architecture, llama_spec(fields, windows=windows))
