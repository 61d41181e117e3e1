"""GLM-4.7 Flash: DeepSeek V3 with other defaults, and a list of the layers with experts."""

from __future__ import annotations

from typing import Any

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes import deepseek
from taco_worker.models.rope_parsing import parse_rotary

_DENSE, _SPARSE = "dense", "sparse"
_DEFAULTS: dict[str, Any] = {
    "kv_lora_rank": 512,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 4,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 1.8,
    "topk_group": 1,
    "v_head_dim": 256,
}


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    parse_rotary(fields.values).check_whole_heads()
    values = {**_DEFAULTS, **fields.values, "first_k_dense_replace": _num_dense(fields)}
    return deepseek.plan(ConfigFields(values), architecture)


def _num_dense(fields: ConfigFields) -> int:
    """The number of layers without experts, which come first."""
    num_layers = fields.size("num_hidden_layers")
    types = fields.per_layer("mlp_layer_types", num_layers)
    if types is None:
        fields.only("first_k_dense_replace", 1)
        return 1
    count = list(types).count(_DENSE)
    if list(types) != [_DENSE] * count + [_SPARSE] * (num_layers - count):
        raise ValueError(
            f"mlp_layer_types must be layers {_DENSE!r}, then {_SPARSE!r}, not {types!r:.100}"
        )
    return count
