"""LFM2 MoE: LFM2 with a mixture of experts, chosen by sigmoids, in all but the first layers."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.mlp_block import MoeSpec, expert_layouts
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.lfm2 import FEED_FORWARD, NAMES, spec_with_mlp


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    spec = spec_with_mlp(fields, fields.size("intermediate_size"))
    num_dense = fields.count("num_dense_layers", default=2)
    mixture = _experts(fields)
    mixtures = [
        None if layer < num_dense else mixture for layer in range(fields.size("num_hidden_layers"))
    ]
    return decoder(architecture, replace(spec, mixtures=mixtures))


def _experts(fields: ConfigFields) -> MoeSpec:
    size, experts = fields.size("moe_intermediate_size"), f"{FEED_FORWARD}.experts"
    hidden_size = fields.size("hidden_size")
    gate_up, down = expert_layouts(experts, size, hidden_size, NAMES, stacked=experts)
    has_bias = fields.flag("use_expert_bias", default=True)
    return MoeSpec(
        fields.size("num_experts", default=32),
        fields.size("num_experts_per_tok", default=4),
        size,
        "silu",
        "sigmoid",
        renormalize=fields.flag("norm_topk_prob", default=True),
        router=(f"{FEED_FORWARD}.gate",),
        gate_up=gate_up,
        down=down,
        correction_bias=f"{FEED_FORWARD}.expert_bias" if has_bias else None,
        scale=fields.positive("routed_scaling_factor", default=1.0),
    )
