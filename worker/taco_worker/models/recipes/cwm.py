"""Code World Model: Llama 3 with windows in three of four layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import llama_mlp, llama_spec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.sliding_windows import FULL, SLIDING, layer_types

_THETA, _WINDOW, _PERIOD = 1e6, 8192, 4
# The settings of configs without any.
_ROPE = {
    "rope_theta": _THETA,
    "rope_type": "llama3",
    "factor": 16.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    fields.only("attention_bias", False)
    has_window = "sliding_window" in fields.values
    window = fields.size("sliding_window") if has_window else _WINDOW
    spec = llama_spec(
        with_rope(fields, _ROPE),
        eps=1e-5,
        default_head_dim=None if "head_dim" in fields.values else 128,
        default_theta=_THETA,
        mlp=llama_mlp(fields, bias=fields.flag("mlp_bias", default=False)),
        windows=[window if kind == SLIDING else None for kind in _kinds(fields)],
    )
    return decoder(architecture, spec)


def with_rope(fields: ConfigFields, default: Mapping[str, Any]) -> ConfigFields:
    """The fields, with the rotary settings of the published config class if they have none.

    Raises:
        ValueError: they have only another theta, which the class ignores.
    """
    if fields.get("rope_parameters") or fields.get("rope_scaling"):
        return fields
    fields.only("rope_theta", default["rope_theta"])
    return ConfigFields({**fields.values, "rope_parameters": default})


def _kinds(fields: ConfigFields) -> Sequence[str]:
    """The type of each layer; by default every fourth sees all tokens, from the first on."""
    if fields.get("layer_types") is not None:
        return layer_types(fields)
    layers = range(fields.size("num_hidden_layers"))
    return [SLIDING if layer % _PERIOD else FULL for layer in layers]
