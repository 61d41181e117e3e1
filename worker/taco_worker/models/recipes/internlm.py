"""InternLM: Llama with biases in attention and its own field of rotary settings."""

from __future__ import annotations

from collections.abc import Mapping

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.model_plan import ModelPlan


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    bias = fields.flag("bias", default=True)
    fields = ConfigFields({**fields.values, **_rope_fields(fields)})
    return decoder(architecture, llama_spec(fields, qkv_bias=bias, out_bias=bias))


def _rope_fields(fields: ConfigFields) -> Mapping[str, object]:
    """The fields by which Llama's configs name the settings of `rotary`.

    Raises:
        ValueError: the type of scaling is unknown.
    """
    rotary = fields.get("rotary", default={})
    if not isinstance(rotary, Mapping):
        raise ValueError(f"rotary must be an object, not {rotary!r}")
    settings = ConfigFields(rotary)
    kind = settings.text("type", default="origin")
    if kind not in ("origin", "dynamic"):
        raise ValueError(f"rotary type {kind!r} is not supported, only 'origin', 'dynamic'")
    if "rope_parameters" in fields.values or not rotary:
        return {}  # given by --rope-scaling or --rope-theta
    scaling = None
    if kind == "dynamic":
        scaling = {"type": kind, "factor": settings.positive("scaling_factor", default=1.0)}
    return {"rope_theta": settings.positive("base", default=10_000.0), "rope_scaling": scaling}
