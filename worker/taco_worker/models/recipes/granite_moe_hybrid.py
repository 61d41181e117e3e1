"""Granite 4: Granite 3 MoE with Mamba 2 in most layers; some models have no experts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import Module, NormSpec
from taco_worker.models.plan.decoder_block import LAYER, Mixer, Rotary, decoder
from taco_worker.models.plan.hybrid_layers import recurrent_layers
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.mamba_block import mamba, read_mamba
from taco_worker.models.plan.mlp_block import MlpSpec, MoeSpec, expert_layouts
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.parameters import Source
from taco_worker.models.recipes.granite import with_factors

_MOE = f"{LAYER}.block_sparse_moe"


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.only("position_embedding_type", None, "nope", "rope")
    fields.only("normalization_function", "rmsnorm")
    has_rope = fields.get("position_embedding_type") == "rope"
    bias = fields.flag("attention_bias", default=False)
    shared, num_experts = _shared_mlp(fields), fields.count("num_local_experts", default=8)
    mixtures = None
    if num_experts:
        mixtures = [_experts(fields, num_experts, shared)] * fields.size("num_hidden_layers")
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        rotary=None if has_rope else Rotary(settings={}),
        mlp=shared,
        mixtures=mixtures,
    )
    rotary = spec.rotary if has_rope else None
    spec = replace(spec, mixers=_mixers(fields, spec.norm), rotary=rotary)
    return decoder(architecture, with_factors(fields, spec))


def _mixers(fields: ConfigFields, norm: NormSpec) -> list[Mixer | None]:
    is_recurrent = None
    for name in ("layers_block_type", "layer_types"):
        is_recurrent = is_recurrent or recurrent_layers(
            fields, ("mamba", "linear_attention"), name=name
        )
    is_recurrent = is_recurrent or [True] * fields.size("num_hidden_layers")
    if not any(is_recurrent):
        return [None] * len(is_recurrent)
    spec = read_mamba(fields, f"{LAYER}.mamba", norm)
    return [partial(mamba, spec=spec) if one else None for one in is_recurrent]


def _experts(fields: ConfigFields, num_experts: int, shared: MlpSpec) -> MoeSpec:
    size, hidden_size = fields.size("intermediate_size"), fields.size("hidden_size")
    # As published, and as transformers 5 saves them. Other formats have each expert's matrices.
    gate_up, down = expert_layouts(f"{_MOE}.experts", size, hidden_size, stacked=f"{_MOE}.experts")
    return MoeSpec(
        num_experts,
        fields.size("num_experts_per_tok", default=2),
        size,
        shared.activation,
        "softmax_topk",
        renormalize=False,
        router=(f"{_MOE}.router.layer", f"{_MOE}.router"),
        gate_up=[[Source(f"{_MOE}.input_linear.weight", 0, 2 * size)], *reversed(gate_up)],
        down=[[Source(f"{_MOE}.output_linear.weight", 0, hidden_size)], *reversed(down)],
        shared=shared,
    )


def _shared_mlp(fields: ConfigFields) -> MlpSpec:
    size = fields.size("shared_intermediate_size", default=1024)
    up = Module(f"{LAYER}.shared_mlp.input_linear", 2 * size)
    down = Module(f"{LAYER}.shared_mlp.output_linear", fields.size("hidden_size"))
    return MlpSpec(size, fields.activation("hidden_act", default="silu"), [up], down, True)
