"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.llama import llama


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    return llama(fields, architecture, qkv_bias=True, windows=sliding_windows(fields))


def sliding_windows(fields: ConfigFields) -> list[int | None] | None:
    """Layers from max_window_layers on have a window; newer configs list it in layer_types."""
    if not fields.flag("use_sliding_window", default=False):
        return None
    window, num_layers = fields.size("sliding_window"), fields.size("num_hidden_layers")
    if kinds := fields.per_layer("layer_types", num_layers):
        return [window if kind == "sliding_attention" else None for kind in kinds]
    first = fields.number("max_window_layers", default=28)
    return [window if layer >= first else None for layer in range(num_layers)]
