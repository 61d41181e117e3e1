"""Llama 1 to 3, and the base of recipes that differ from it in a few options."""

from __future__ import annotations

from collections.abc import Sequence

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import llama_mlp, llama_spec
from taco_worker.models.plan.model_plan import ModelPlan


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    bias = fields.flag("attention_bias", default=False)
    return llama(fields, architecture, qkv_bias=bias, out_bias=bias)


def llama(
    fields: ConfigFields,
    architecture: str,
    *,
    qkv_bias: bool = False,
    out_bias: bool = False,
    windows: Sequence[int | None] | None = None,
) -> ModelPlan:
    """`windows`: per layer, the number of tokens that a token sees; None is all."""
    mlp = llama_mlp(fields, bias=fields.flag("mlp_bias", default=False))
    spec = llama_spec(fields, qkv_bias=qkv_bias, out_bias=out_bias, windows=windows, mlp=mlp)
    return decoder(architecture, spec)
