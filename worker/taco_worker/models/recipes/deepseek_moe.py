"""DeepSeek MoE 16B, the first version: Llama with experts, and experts that every token passes."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import MLP, decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.mlp_block import MoeSpec, expert_layouts, gated_mlp
from taco_worker.models.plan.model_plan import ModelPlan


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.only("attention_bias", False)
    num_layers = fields.size("num_hidden_layers")
    num_dense = fields.count("first_k_dense_replace", default=0)
    step = fields.size("moe_layer_freq", default=1)
    mixture = softmax_experts(fields)
    mixtures = [
        mixture if layer >= num_dense and layer % step == 0 else None for layer in range(num_layers)
    ]
    return decoder(architecture, llama_spec(fields, mixtures=mixtures))


def softmax_experts(fields: ConfigFields) -> MoeSpec:
    """The mixture of a layer: probabilities among all experts, and maybe shared experts."""
    fields.only("scoring_func", "softmax")
    top_k, hidden_size = fields.size("num_experts_per_tok"), fields.size("hidden_size")
    size = fields.size("moe_intermediate_size")
    activation = fields.activation("hidden_act", default="silu")
    gate_up, down = expert_layouts(f"{MLP}.experts", size, hidden_size)
    shared = fields.optional_size("n_shared_experts")
    return MoeSpec(
        fields.size("n_routed_experts"),
        top_k,
        size,
        activation,
        "softmax",
        # The published code leaves the weight of a single expert as it is.
        renormalize=top_k > 1 and fields.flag("norm_topk_prob", default=False),
        router=(f"{MLP}.gate",),
        gate_up=gate_up,
        down=down,
        shared=None
        if shared is None
        else gated_mlp(f"{MLP}.shared_experts", shared * size, hidden_size, activation),
    )
