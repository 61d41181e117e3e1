"""HunYuan dense 0.5B to 7B: Llama that norms queries and keys after their rotation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import DecoderSpec, decoder
from taco_worker.models.plan.llama_block import head_norms, llama_spec, read_heads
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.rope_parsing import parse_rotary


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    return decoder(architecture, hunyuan(fields))


def hunyuan(fields: ConfigFields, **changes: Any) -> DecoderSpec:
    """Llama's decoder with HunYuan's attention.

    Args:
        changes: as of `llama_spec`.

    Raises:
        ValueError: layers share keys and values, heads have no norms, or the MLP has biases.
    """
    for name, supported in (("use_qk_norm", True), ("use_cla", False), ("mlp_bias", False)):
        fields.only(name, supported)
    default_head_dim = fields.optional_size("attention_head_dim")
    head_dim = read_heads(fields, default_head_dim=default_head_dim).head_dim
    fields.only("attention_head_dim", head_dim)
    bias = fields.flag("attention_bias", default=False)
    spec = llama_spec(
        _with_stretched_theta(fields, head_dim),
        qkv_bias=bias,
        out_bias=bias,
        eps=1e-5,
        default_head_dim=default_head_dim,
        **changes,
    )
    norm = replace(head_norms(spec.norm, "query_layernorm", "key_layernorm"), is_after_rope=True)
    return replace(spec, attention=replace(spec.attention, head_norm=norm))


def _with_stretched_theta(fields: ConfigFields, head_dim: int) -> ConfigFields:
    """Fields with the theta that scaling of the type "dynamic" with a fixed `alpha` means.

    Unlike other scaling of the type, it is the same for sequences of all lengths.
    """
    given = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    alpha = ConfigFields(given).optional_positive("alpha")
    if alpha is None or (given.get("rope_type") or given.get("type")) != "dynamic":
        return fields
    unscaled = {**given, "rope_type": "default"}
    theta = parse_rotary({**fields.values, "rope_parameters": unscaled}).theta
    stretched = {**unscaled, "rope_theta": theta * alpha ** (head_dim / (head_dim - 2))}
    return ConfigFields({**fields.values, "rope_parameters": stretched})
