"""Mistral 7B and similar models: Llama with a sliding window in every layer, or in some."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.sliding_windows import windows_by_type

# Of configs without the field; null is no window.
_DEFAULT_WINDOW = 4096


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    window = fields.optional_size("sliding_window")
    if "sliding_window" not in fields.values:
        window = _DEFAULT_WINDOW
    windows = [window] * fields.size("num_hidden_layers")
    if fields.get("layer_types") is not None:  # params.json of Ministral 8B
        windows = windows_by_type(fields, default_window=_DEFAULT_WINDOW)
    return decoder(architecture, llama_spec(fields, windows=windows))
