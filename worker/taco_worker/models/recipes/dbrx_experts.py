"""The mixture of experts of DBRX, whose tensors have no axis of experts."""

from __future__ import annotations

from collections.abc import Mapping

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.mlp_block import MoeSpec, expert_layouts
from taco_worker.models.plan.parameters import Source
from taco_worker.models.plan.views import Transpose

LAYER = "transformer.blocks.{layer}"
_EXPERTS = f"{LAYER}.ffn.experts.mlp"


def mixture_of_experts(ffn: ConfigFields, hidden_size: int) -> MoeSpec:
    """The mixture of `ffn_config`.

    Raises:
        ValueError: the published code has the option, but no published model does.
    """
    ffn.only("uniform_expert_assignment", False)
    size = ffn.size("ffn_hidden_size", default=3584)
    function = ffn.get("ffn_act_fn", default={"name": "silu"})
    if not isinstance(function, Mapping) or function.keys() != {"name"}:
        raise ValueError(f"ffn_act_fn must have a name alone, not {function!r:.100}")
    power = ffn.values.get("moe_normalize_expert_weights", 1)
    if power not in (None, 1):
        raise ValueError(f"moe_normalize_expert_weights must be 1 or null, not {power!r}")
    # Files of other formats have the matrices of each expert.
    (own_gate_up, *_), (own_down, *_) = expert_layouts(f"{LAYER}.ffn.experts", size, hidden_size)
    gate, up, down = (f"{_EXPERTS}.{name}" for name in ("w1", "v1", "w2"))
    return MoeSpec(
        ffn.size("moe_num_experts", default=4),
        ffn.size("moe_top_k", default=1),
        size,
        ConfigFields(function).activation("name"),
        "softmax",
        renormalize=power is not None,
        router=(f"{LAYER}.ffn.router.layer",),
        gate_up=[
            [Source(gate, 0, size, is_flat=True), Source(up, size, size, is_flat=True)],
            own_gate_up,
        ],
        down=[[Source(down, 0, hidden_size, (Transpose(),), is_flat=True)], own_down],
    )
