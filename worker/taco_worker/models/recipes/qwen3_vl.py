"""Qwen3-VL, the text part: Qwen 3 whose positions have three axes, which are equal for text."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes import qwen3

_THETA = 500_000.0
_SECTIONS = ("mrope_section", "mrope_interleaved")


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    return qwen3.plan(with_one_axis(fields), architecture)


def with_one_axis(fields: ConfigFields) -> ConfigFields:
    """The fields without the sections of M-RoPE, which change nothing where the axes are equal."""
    fields.only("use_sliding_window", False)
    rope = {
        name: {key: value for key, value in given.items() if key not in _SECTIONS}
        for name in ("rope_parameters", "rope_scaling")
        if (given := fields.get(name))
    }
    theta = fields.get("rope_theta", default=_THETA)
    return ConfigFields({**fields.values, **rope, "rope_theta": theta})
