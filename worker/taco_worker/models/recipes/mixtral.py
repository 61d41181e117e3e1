"""Mixtral: Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import LAYER, MLP, decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.mlp_block import MoeSpec, expert_layouts
from taco_worker.models.plan.model_plan import ModelPlan

_MOE = f"{LAYER}.block_sparse_moe"


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    num_layers = fields.size("num_hidden_layers")
    spec = llama_spec(
        fields,
        eps=1e-5,
        default_theta=1e6,
        windows=[fields.optional_size("sliding_window")] * num_layers,
        mixtures=[mixture_of_experts(fields)] * num_layers,
    )
    return decoder(architecture, spec)


def mixture_of_experts(
    fields: ConfigFields, *, default_experts: int = 8, default_top_k: int = 2
) -> MoeSpec:
    """`default_experts`, `default_top_k`: numbers of experts of configs without the fields."""
    size, hidden_size = fields.size("intermediate_size"), fields.size("hidden_size")
    gate_up, down = expert_layouts(f"{_MOE}.experts", size, hidden_size, ("w1", "w3", "w2"))
    return MoeSpec(
        fields.size("num_local_experts", default=default_experts),
        fields.size("num_experts_per_tok", default=default_top_k),
        size,
        fields.activation("hidden_act", default="silu"),
        "softmax",
        renormalize=True,
        router=(f"{_MOE}.gate", f"{MLP}.gate"),
        gate_up=gate_up,
        down=down,
    )
