"""Qwen3-VL MoE, the text part: Qwen3-VL with the experts of Qwen 3 MoE, stacked as [in, out]."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import MLP, decoder
from taco_worker.models.plan.mlp_block import MoeSpec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.parameters import Source
from taco_worker.models.plan.views import Transpose
from taco_worker.models.recipes.qwen2_moe import qwen_experts
from taco_worker.models.recipes.qwen3_moe import qwen3_moe_spec
from taco_worker.models.recipes.qwen3_vl import with_one_axis


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    fields.only("norm_topk_prob", True)
    fields = with_one_axis(fields)
    experts = qwen_experts(fields, fields.size("moe_intermediate_size"))
    return decoder(architecture, qwen3_moe_spec(fields, _stacked(fields, experts)))


def _stacked(fields: ConfigFields, experts: MoeSpec) -> MoeSpec:
    """Also with the published stacks; transformers 5 saves [out, in]."""

    def published(name: str, size: int) -> list[Source]:
        return [Source(f"{MLP}.experts.{name}_proj", 0, size, (Transpose(),))]

    gate_up = published("gate_up", 2 * experts.size)
    down = published("down", fields.size("hidden_size"))
    return replace(
        experts,
        renormalize=True,
        gate_up=[gate_up, *experts.gate_up],
        down=[down, *experts.down],
    )
