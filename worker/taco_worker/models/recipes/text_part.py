"""Models for text and images whose text part is a model of another architecture, as in LLaVA.

`config_reading` finds that architecture first, so that this recipe is used where it has none.
"""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.model_plan import ModelPlan


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    model_type = fields.get("model_type")
    raise ValueError(f"{architecture} with a text model of type {model_type!r} is not supported")
