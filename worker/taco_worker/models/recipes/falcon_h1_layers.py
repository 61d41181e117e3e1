"""The blocks of Falcon-H1's layers, with their factors."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import AttentionSpec, RopeSpec
from taco_worker.models.plan.builder import PlanBuilder
from taco_worker.models.plan.decoder_block import LAYER, DecoderSpec
from taco_worker.models.plan.mamba_block import InputScales, MambaSpec, read_mamba
from taco_worker.models.plan.mlp_block import MlpSpec
from taco_worker.models.plan.ops.activation import Activation
from taco_worker.models.plan.ops.elementwise import Scale
from taco_worker.models.plan.slices import Slice


def attention_spec(b: PlanBuilder, fields: ConfigFields, spec: DecoderSpec) -> AttentionSpec:
    """Attention whose scale has the factors on queries and keys; that on values is the output's."""
    assert spec.rotary is not None
    if spec.attention.qkv_bias:
        fields.only("attention_in_multiplier", 1.0)
    settings, head_dim = spec.rotary.settings["rope"], spec.attention.heads.head_dim
    size = settings.rotary_dim(head_dim)
    rope = RopeSpec(b.rope_table("rope", settings, size), size)
    scale = factor(fields, "attention_in") ** 2 * fields.positive("key_multiplier", default=1.0)
    return replace(spec.attention, scale=spec.attention.scale * scale, rope=rope)


def mamba_spec(fields: ConfigFields, spec: DecoderSpec) -> MambaSpec:
    if fields.flag("mamba_proj_bias", default=False):
        fields.only("ssm_in_multiplier", 1.0)
    gate, value, key, query, step = (
        factor(fields, "ssm_in") * one for one in factors(fields, "ssm_multipliers", 5)
    )
    return read_mamba(
        fields,
        f"{LAYER}.mamba",
        spec.norm if fields.flag("mamba_rms_norm", default=False) else None,
        size=fields.optional_size("mamba_d_ssm"),
        norm_comes_first=fields.flag("mamba_norm_before_gate", default=True),
        out_bias=fields.flag("projectors_bias", default=False),
        scales=InputScales(gate, value, key, query, step),
    )


def scaled_mlp(b: PlanBuilder, x: Slice, spec: MlpSpec, gate_scale: float) -> Slice:
    """down(act(gate_scale * gate(x)) * up(x))"""
    up = b.buffer("up", 2 * spec.size)
    b.linear(x, "mlp.gate_up_proj", spec.up, bias=spec.up_bias, out=up)
    if gate_scale != 1.0:
        b.add(Scale(up.columns(0, spec.size), gate_scale))
    inner, out = b.buffer("inner", spec.size), b.buffer("mlp_out", b.stream.size)
    b.add(Activation(up, inner, spec.activation, gated=True))
    return b.linear(inner, "mlp.down_proj", [spec.down], bias=spec.down_bias, out=out, shard_unit=1)


def factor(fields: ConfigFields, name: str) -> float:
    return fields.number(f"{name}_multiplier", default=1.0)


def factors(fields: ConfigFields, name: str, count: int) -> list[float]:
    """The numbers of a list, by default 1.

    Raises:
        ValueError: they are not `count` numbers.
    """
    given = fields.get(name, default=[1.0] * count)
    if not isinstance(given, list) or len(given) != count:
        raise ValueError(f"{name} must be a list of {count} numbers, not {given!r:.100}")
    return [ConfigFields({name: one}).number(name) for one in given]
