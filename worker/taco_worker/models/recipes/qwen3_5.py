"""Qwen3.5, the text part: Gated DeltaNet in most layers, and gated attention in the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import AttentionSpec
from taco_worker.models.plan.builder import Module, rms
from taco_worker.models.plan.decoder_block import ATTENTION, LLAMA_NAMES, DecoderSpec, decoder
from taco_worker.models.plan.delta_block import DeltaNetSpec, mixers, read_delta_heads
from taco_worker.models.plan.llama_block import head_norms, llama_spec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.views import GroupedRows, PlusOne
from taco_worker.models.recipes.qwen3_vl import with_one_axis

DELTA = "model.layers.{layer}.linear_attn"
# The module mtp predicts further tokens.
_NAMES = replace(LLAMA_NAMES, ignored=(*LLAMA_NAMES.ignored, r"^mtp\."))


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields = text_fields(fields)
    return decoder(architecture, hybrid_spec(fields, delta_spec(fields)))


def text_fields(fields: ConfigFields) -> ConfigFields:
    """The fields for text, for which the three axes of positions are equal."""
    fields.only("attn_output_gate", True)
    theta = fields.get("rope_theta", default=10_000.0)
    return with_one_axis(ConfigFields({**fields.values, "rope_theta": theta}))


def hybrid_spec(fields: ConfigFields, delta: DeltaNetSpec, **changes: Any) -> DecoderSpec:
    """The decoder, with `delta` in the layers of linear attention."""
    fields.needs("num_key_value_heads")
    bias = fields.flag("attention_bias", default=False)
    norm = rms(fields.epsilon("rms_norm_eps", default=1e-6), PlusOne())
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        default_head_dim=256,
        default_partial=0.25,
        norm=norm,
        names=_NAMES,
        **changes,
    )
    period = fields.size("full_attention_interval", default=4)
    attention = _with_gate(replace(spec.attention, gate_bias=bias, head_norm=head_norms(norm)))
    return replace(spec, attention=attention, mixers=mixers(fields, delta, period))


def delta_spec(fields: ConfigFields) -> DeltaNetSpec:
    """Gated DeltaNet with a module for each kind of columns."""
    fields.only("hidden_act", "silu")  # also of the convolution
    heads = read_delta_heads(fields, 32, 16, 128, 128)
    return DeltaNetSpec(
        prefix=DELTA,
        heads=heads,
        qkv=[Module(f"{DELTA}.in_proj_qkv", heads.qkv_size)],
        gate=Module(f"{DELTA}.in_proj_z", heads.values_size),
        beta=Module(f"{DELTA}.in_proj_b", heads.num_heads),
        decay=Module(f"{DELTA}.in_proj_a", heads.num_heads),
        convolutions=[[Module(f"{DELTA}.conv1d", heads.qkv_size)]],
        width=fields.size("linear_conv_kernel_dim", default=4),
        norm=f"{DELTA}.norm",
        norm_spec=rms(fields.epsilon("rms_norm_eps", default=1e-6)),
        out=Module(f"{DELTA}.out_proj", fields.size("hidden_size")),
    )


def _with_gate(spec: AttentionSpec) -> AttentionSpec:
    """q_proj holds the query and the gate of each head."""
    size, dim = spec.heads.query_size, spec.heads.head_dim
    rows = (GroupedRows(spec.heads.num_heads, 2 * dim, start, dim) for start in (0, dim))
    query, gate = (Module(f"{ATTENTION}.q_proj", size, (view,)) for view in rows)
    return replace(spec, qkv=[query, *spec.qkv[1:]], gate=gate)
