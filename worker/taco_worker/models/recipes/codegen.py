"""CodeGen: GPT-J with one tensor of queries, values and keys, in four parts."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import Module
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.views import GroupedRows
from taco_worker.models.recipes.gptj import gptj_spec

_QKV = "transformer.h.{layer}.attn.qkv_proj"
_NUM_PARTS = 4


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    if fields.get("auto_map") is not None:
        raise ValueError(
            "CodeGen 2 (a config with auto_map) is not supported: its 1B and 3.7B models have "
            "queries, keys and values in another order"
        )
    spec = gptj_spec(fields)
    heads = spec.attention.heads
    if heads.num_heads % _NUM_PARTS:
        raise ValueError(f"n_head must be a multiple of {_NUM_PARTS}, not {heads.num_heads}")
    # Each part holds the queries, then the values, then the keys of its heads.
    size = heads.query_size // _NUM_PARTS
    qkv = [
        Module(_QKV, heads.query_size, (GroupedRows(_NUM_PARTS, 3 * size, index * size, size),))
        for index in (0, 2, 1)
    ]
    return decoder(architecture, replace(spec, attention=replace(spec.attention, qkv=qkv)))
