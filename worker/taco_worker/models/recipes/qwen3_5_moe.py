"""Qwen3.5 MoE, the text part: Qwen3.5 with the experts of Qwen3-Next in all layers."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.qwen3_5 import delta_spec, hybrid_spec, text_fields
from taco_worker.models.recipes.qwen3_next import gated_mixture

# Nested configs leave out what their class has.
_DEFAULTS = {
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
}


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    # The published code has no such fields.
    fields.only("norm_topk_prob", True)
    fields.only("mlp_only_layers", [])
    fields.only("decoder_sparse_step", 1)
    fields = text_fields(ConfigFields({**_DEFAULTS, **fields.values}))
    mixture = gated_mixture(fields)
    spec = hybrid_spec(
        fields,
        delta_spec(fields),
        mlp=mixture.shared,  # no layer has it: configs need no intermediate_size
        mixtures=[mixture] * fields.size("num_hidden_layers"),
    )
    return decoder(architecture, spec)
