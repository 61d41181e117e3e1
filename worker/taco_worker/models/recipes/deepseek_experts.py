"""The mixtures of experts of DeepSeek V2 and V3; GLM 4.5 has V3's."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.mlp_block import MoeSpec, expert_layouts, gated_mlp

_MLP = "model.layers.{layer}.mlp"


def mixture_of_experts(
    fields: ConfigFields,
    architecture: str,
    *,
    default_scale: float = 2.5,
    default_groups: int | None = None,
) -> MoeSpec:
    """The mixture of V3, and of V2 if the architecture is V2.

    Args:
        default_scale: routed_scaling_factor of V3's configs without it.
        default_groups: n_group and topk_group of configs without them; None: they are needed.

    Raises:
        ValueError: the published code has the router, but no published model does.
    """
    is_v2 = architecture == "DeepseekV2ForCausalLM"
    fields.only("moe_layer_freq", 1)
    if is_v2:
        fields.only("scoring_func", "softmax")
        fields.only("topk_method", "greedy", "group_limited_greedy")
        fields.only("norm_topk_prob", False)
    else:
        fields.only("scoring_func", "sigmoid")
        fields.only("topk_method", "noaux_tc")
    has_groups = not is_v2 or fields.get("topk_method") == "group_limited_greedy"
    size, hidden_size = fields.size("moe_intermediate_size"), fields.size("hidden_size")
    activation = fields.activation("hidden_act", default="silu")
    gate_up, down = expert_layouts(f"{_MLP}.experts", size, hidden_size)
    shared = fields.nullable_size("n_shared_experts")
    return MoeSpec(
        fields.size("n_routed_experts"),
        fields.size("num_experts_per_tok"),
        size,
        activation,
        "softmax" if is_v2 else "sigmoid",
        renormalize=fields.flag("norm_topk_prob", default=not is_v2),
        router=(f"{_MLP}.gate",),
        gate_up=gate_up,
        down=down,
        correction_bias=None if is_v2 else f"{_MLP}.gate.e_score_correction_bias",
        scale=fields.positive("routed_scaling_factor", default=1.0 if is_v2 else default_scale),
        num_groups=fields.size("n_group", default=default_groups) if has_groups else 1,
        top_groups=fields.size("topk_group", default=default_groups) if has_groups else 1,
        group_score="max" if is_v2 else "sum_of_two",
        shared=None
        if shared is None
        else gated_mlp(f"{_MLP}.shared_experts", shared * size, hidden_size, activation),
    )
