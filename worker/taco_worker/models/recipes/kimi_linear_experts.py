"""The experts of Kimi Linear: DeepSeek V3's, whose config has other names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import MLP
from taco_worker.models.plan.mlp_block import MoeSpec, expert_layouts
from taco_worker.models.recipes.deepseek_experts import mixture_of_experts

# DeepSeek V3's names of fields, and those of Kimi Linear.
_NAMES = {
    "n_routed_experts": ("num_experts", "num_local_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "num_experts_per_tok"),
    "n_shared_experts": ("num_shared_experts", "n_shared_experts"),
    "n_group": ("num_expert_group", "n_group"),
    "norm_topk_prob": ("moe_renormalize", "norm_topk_prob"),
}


def has_experts(fields: ConfigFields) -> Sequence[bool]:
    """Whether each layer has experts."""
    num_layers = fields.size("num_hidden_layers")
    kinds = fields.per_layer("mlp_layer_types", num_layers)
    if kinds is None:
        num_dense = fields.count("first_k_dense_replace", default=1)
        return [layer >= num_dense for layer in range(num_layers)]
    for kind in kinds:
        if kind not in ("dense", "sparse"):
            raise ValueError(f"mlp_layer_types must be dense or sparse, not {kind!r:.100}")
    return [kind == "sparse" for kind in kinds]


def mixture(fields: ConfigFields) -> MoeSpec:
    """DeepSeek V3's experts, under other names."""
    fields.only("moe_router_activation_func", "sigmoid")
    fields.only("use_grouped_topk", True)
    values = {ours: fields.get(*theirs) for ours, theirs in _NAMES.items()}
    values["n_shared_experts"] = values["n_shared_experts"] or 1
    experts = mixture_of_experts(
        ConfigFields({**fields.values, **values}),
        "DeepseekV3ForCausalLM",
        default_scale=2.446,
        default_groups=1,
    )
    names = ("w1", "w3", "w2")
    gate_up, down = expert_layouts(
        f"{MLP}.experts", experts.size, fields.size("hidden_size"), names
    )
    return replace(experts, gate_up=gate_up, down=down)
