"""Qwen3-Next: Qwen3.5 with projections that are stored by key head, and experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import Module
from taco_worker.models.plan.decoder_block import MLP, decoder
from taco_worker.models.plan.delta_block import DeltaNetSpec
from taco_worker.models.plan.mlp_block import MoeSpec, gated_mlp
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.views import GroupedRows
from taco_worker.models.recipes.qwen2_moe import mixtures, qwen_experts
from taco_worker.models.recipes.qwen3_5 import DELTA, delta_spec, hybrid_spec


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    mixture = gated_mixture(fields)
    layers = mixtures(fields, mixture)
    # A config whose layers all have experts needs no intermediate_size.
    mlp = None if None in layers else mixture.shared
    delta = _by_key_head(delta_spec(fields))
    return decoder(architecture, hybrid_spec(fields, delta, mlp=mlp, mixtures=layers))


def gated_mixture(fields: ConfigFields) -> MoeSpec:
    """Experts, and a gated expert that all tokens pass."""
    experts = qwen_experts(fields, fields.size("moe_intermediate_size"))
    shared = gated_mlp(
        f"{MLP}.shared_expert",
        fields.size("shared_expert_intermediate_size"),
        fields.size("hidden_size"),
        experts.activation,
    )
    return replace(
        experts,
        renormalize=fields.flag("norm_topk_prob", default=True),
        shared=shared,
        shared_gate=f"{MLP}.shared_expert_gate",
    )


def _by_key_head(spec: DeltaNetSpec) -> DeltaNetSpec:
    """One module holds the parts of each key head with those of its value heads."""
    heads = spec.heads
    values = heads.values_size // heads.num_key_heads
    per_key = heads.num_heads // heads.num_key_heads

    def parts(name: str, *sizes: int) -> Iterator[Module]:
        count, start = heads.num_key_heads, 0
        for size in sizes:
            view = GroupedRows(count, sum(sizes), start, size)
            yield Module(f"{DELTA}.{name}", count * size, (view,))
            start += size

    *qkv, gate = parts("in_proj_qkvz", heads.key_dim, heads.key_dim, values, values)
    beta, decay = parts("in_proj_ba", per_key, per_key)
    return replace(spec, qkv=qkv, gate=gate, beta=beta, decay=decay)
