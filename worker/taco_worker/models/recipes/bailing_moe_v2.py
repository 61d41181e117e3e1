"""Ling 2 and Ring 2: Ling with partial rotation, norms of heads and DeepSeek V3's experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import MLP, decoder
from taco_worker.models.plan.mlp_block import MoeSpec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.bailing_moe import bailing_spec, with_deepseek_names
from taco_worker.models.recipes.deepseek_experts import mixture_of_experts

_DEFAULTS: dict[str, Any] = {
    "first_k_dense_replace": 1,
    "head_dim": 128,
    "moe_intermediate_size": 512,
    "n_group": 8,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "rms_norm_eps": 1e-6,
    "rope_theta": 600_000.0,
    "routed_scaling_factor": 1.0,
    "topk_group": 4,
    "use_qk_norm": True,
}


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    fields = ConfigFields({**_DEFAULTS, **fields.values})
    spec = bailing_spec(fields, _experts(fields, architecture), default_partial=1.0)
    assert spec.rotary is not None
    rotary_dim = spec.rotary.settings["rope"].rotary_dim(spec.attention.heads.head_dim)
    fields.only("rotary_dim", rotary_dim)
    return decoder(architecture, spec)


def _experts(fields: ConfigFields, architecture: str) -> MoeSpec:
    fields.only("norm_topk_prob", True)
    fields.only("moe_router_enable_expert_bias", True)
    fields.only("moe_shared_expert_intermediate_size", fields.size("moe_intermediate_size"))
    mixture = mixture_of_experts(with_deepseek_names(fields), architecture)
    # The published code leaves the weight of a single expert as it is.
    renormalize = mixture.top_k > 1
    bias = f"{MLP}.gate.expert_bias"
    return replace(mixture, renormalize=renormalize, correction_bias=bias)
