"""SmolLM3: Llama without rotary positions in some layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import llama_mlp, llama_spec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.sliding_windows import windows_by_depth

_DEFAULT_THETA = 2e6


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    bias = fields.flag("attention_bias", default=False)
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        default_theta=_DEFAULT_THETA,
        tied=True,
        mlp=llama_mlp(fields, bias=fields.flag("mlp_bias", default=False)),
        windows=_windows(fields),
    )
    assert spec.rotary is not None
    tables = ["rope" if has_rope else None for has_rope in _have_rope(fields)]
    return decoder(architecture, replace(spec, rotary=replace(spec.rotary, tables=tables)))


def _windows(fields: ConfigFields) -> list[int | None] | None:
    """As in transformers: without layer_types the layers without rotary positions slide."""
    if fields.get("layer_types") or not fields.flag("use_sliding_window", default=False):
        return windows_by_depth(fields)
    window = fields.size("sliding_window")
    return [None if has_rope else window for has_rope in _have_rope(fields)]


def _have_rope(fields: ConfigFields) -> Sequence[int]:
    """`no_rope_layers` has a 1 for each layer with rotary positions."""
    num_layers = fields.size("num_hidden_layers")
    given = fields.per_layer("no_rope_layers", num_layers)
    if given is None:
        interval = fields.size("no_rope_layer_interval", default=4)
        given = [int((layer + 1) % interval != 0) for layer in range(num_layers)]
    if not all(one in (0, 1) for one in given):
        raise ValueError(f"no_rope_layers must be a list of 0 and 1, not {given!r:.100}")
    return given
