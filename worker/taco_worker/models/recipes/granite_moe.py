"""Granite 3 MoE: Granite with a mixture of experts in every layer, and maybe a shared expert."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import Module
from taco_worker.models.plan.decoder_block import LAYER, decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.mlp_block import MlpSpec, MoeSpec, expert_layouts
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.parameters import Source
from taco_worker.models.recipes.granite import with_factors

_MOE = f"{LAYER}.block_sparse_moe"
# As published, and as transformers 5 saves them.
_ROUTERS = (f"{_MOE}.router.layer", f"{_MOE}.router")
_GATE_UP = (f"{_MOE}.input_linear.weight", f"{_MOE}.experts.gate_up_proj")
_DOWN = (f"{_MOE}.output_linear.weight", f"{_MOE}.experts.down_proj")


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    bias = fields.flag("attention_bias", default=False)
    size, hidden_size = fields.size("intermediate_size"), fields.size("hidden_size")
    # Files of other formats have the matrices of each expert.
    gate_up, down = expert_layouts(f"{_MOE}.experts", size, hidden_size)
    mixture = MoeSpec(
        fields.size("num_local_experts", default=8),
        fields.size("num_experts_per_tok", default=2),
        size,
        fields.activation("hidden_act", default="silu"),
        "softmax_topk",
        renormalize=False,
        router=_ROUTERS,
        gate_up=[*([Source(name, 0, 2 * size)] for name in _GATE_UP), gate_up[0]],
        down=[*([Source(name, 0, hidden_size)] for name in _DOWN), down[0]],
        shared=_shared_expert(fields),
    )
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        mixtures=[mixture] * fields.size("num_hidden_layers"),
    )
    return decoder(architecture, with_factors(fields, spec))


def _shared_expert(fields: ConfigFields) -> MlpSpec | None:
    """Of GraniteMoeShared."""
    size = fields.count("shared_intermediate_size", default=0)
    if not size:
        return None
    up = Module(f"{LAYER}.shared_mlp.input_linear", 2 * size)
    down = Module(f"{LAYER}.shared_mlp.output_linear", fields.size("hidden_size"))
    return MlpSpec(size, fields.activation("hidden_act", default="silu"), [up], down, True)
