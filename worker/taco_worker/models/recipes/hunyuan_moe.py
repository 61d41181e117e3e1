"""HunYuan A13B: HunYuan with a mixture of experts and a shared expert in every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import MLP, decoder
from taco_worker.models.plan.llama_block import llama_mlp
from taco_worker.models.plan.mlp_block import MoeSpec, expert_layouts, gated_mlp
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.hunyuan import hunyuan


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    mixture = mixture_of_experts(fields)
    top_ks = _per_layer(fields, "moe_topk", "num_experts_per_tok", default=1)
    mixtures = [replace(mixture, top_k=top_k) for top_k in top_ks]
    return decoder(architecture, hunyuan(fields, mlp=llama_mlp(fields), mixtures=mixtures))


def mixture_of_experts(fields: ConfigFields) -> MoeSpec:
    """The mixture of all layers, but for the number of chosen experts.

    Raises:
        ValueError: experts differ from the shared one in size, or another router is configured.
    """
    size, hidden_size = fields.size("intermediate_size"), fields.size("hidden_size")
    for name, supported in (("moe_intermediate_size", size), ("num_shared_expert", 1)):
        if any(given != supported for given in _per_layer(fields, name, default=supported)):
            raise ValueError(
                f"{name} {fields.get(name)!r:.100} is not supported, only {supported} in all layers"
            )
    fields.only("use_mixed_mlp_moe", True)
    fields.only("moe_layer_num_skipped", 0)
    fields.only("norm_topk_prob", True)
    fields.only("routed_scaling_factor", 1.0, False)  # false: as in the configs of dense models
    fields.only("group_limited_greedy", False)
    activation = fields.activation("hidden_act", default="silu")
    gate_up, down = expert_layouts(f"{MLP}.experts", size, hidden_size)
    return MoeSpec(
        fields.size("num_experts", "num_local_experts", default=1),
        1,
        size,
        activation,
        "softmax",
        renormalize=True,
        router=(f"{MLP}.gate.wg",),
        gate_up=gate_up,
        down=down,
        shared=gated_mlp(f"{MLP}.shared_mlp", size, hidden_size, activation),
    )


def _per_layer(fields: ConfigFields, *names: str, default: int) -> Sequence[int]:
    """A number of each layer; configs have a list, or one number for all layers."""
    num_layers = fields.size("num_hidden_layers")
    name = next((name for name in names if fields.get(name) is not None), names[0])
    if not isinstance(fields.get(name), list):
        return [fields.size(name, default=default)] * num_layers
    given = fields.per_layer(name, num_layers) or ()
    return [ConfigFields({name: one}).size(name) for one in given]
