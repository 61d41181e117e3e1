"""MiMo-V2-Flash: narrow values, and sinks and twice the KV heads in layers with a window."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import AttentionSpec, Heads
from taco_worker.models.plan.decoder_block import ATTENTION, LLAMA_NAMES, decoder
from taco_worker.models.plan.llama_block import llama_attention, llama_spec, rotary_by_type
from taco_worker.models.plan.mlp_block import MoeSpec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.sliding_windows import FULL, SLIDING
from taco_worker.models.recipes.deepseek_experts import mixture_of_experts
from taco_worker.models.recipes.mimo_v2_layers import attention_types, have_experts, read_window
from taco_worker.models.rope_parsing import parse_layer_rotary

_NAMES = replace(LLAMA_NAMES, ignored=(*LLAMA_NAMES.ignored, r"^model\.mtp\."))
_PARTIAL = 0.334


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    fields.only("rope_scaling", None)
    epsilon = fields.get("rms_norm_eps", "layernorm_epsilon")
    fields = ConfigFields({**fields.values, "rms_norm_eps": epsilon})
    settings = parse_layer_rotary(
        fields.values,
        (FULL, SLIDING),
        unscaled={SLIDING: fields.get("swa_rope_theta", default=10_000.0)},
        default_theta=5e6,
        default_partial=_PARTIAL,
    )
    kinds, experts = attention_types(fields), have_experts(fields)
    by_kind, window = _attention(fields), read_window(fields)
    mixture = _experts(fields, architecture) if any(experts) else None
    spec = llama_spec(
        fields,
        eps=1e-5,
        default_head_dim=192,
        default_partial=_PARTIAL,
        rotary=rotary_by_type(settings, kinds),
        windows=[window if kind == SLIDING else None for kind in kinds],
        attention_by_layer=[by_kind[kind] for kind in kinds],
        mixtures=[mixture if one else None for one in experts],
        names=_NAMES,
    )
    return decoder(architecture, spec)


def _attention(fields: ConfigFields) -> dict[str, AttentionSpec]:
    num_heads, count = fields.size("num_attention_heads"), fields.size("num_key_value_heads")
    full = Heads(
        num_heads,
        count,
        fields.size("head_dim", default=192),
        fields.size("v_head_dim", default=128),
    )
    sliding = replace(full, num_kv_heads=2 * count)
    fields.only("swa_num_attention_heads", num_heads)
    fields.only("swa_num_key_value_heads", sliding.num_kv_heads)
    fields.only("swa_head_dim", full.head_dim)
    fields.only("swa_v_head_dim", full.value_dim)
    fields.only("add_full_attention_sink_bias", False)
    fields.only("add_swa_attention_sink_bias", True)
    bias, name = fields.flag("attention_bias", default=False), "attention_value_scale"
    # null is no factor.
    scale = fields.positive(name, default=1.0 if name in fields.values else 0.707)
    sinks = f"{ATTENTION}.attention_sink_bias", f"{ATTENTION}.sinks"
    first, second = (
        replace(llama_attention(fields, heads, qkv_bias=bias), value_scale=scale)
        for heads in (full, sliding)
    )
    return {FULL: first, SLIDING: replace(second, sinks=sinks)}


def _experts(fields: ConfigFields, architecture: str) -> MoeSpec:
    fields.only("n_shared_experts", None)
    others = ConfigFields({**fields.values, "n_shared_experts": None, "moe_layer_freq": None})
    return mixture_of_experts(others, architecture, default_scale=1.0, default_groups=1)
