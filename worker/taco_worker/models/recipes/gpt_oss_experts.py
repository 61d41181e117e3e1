"""The mixture of experts of gpt-oss, in two layouts: stacked and interleaved, or by expert."""

from __future__ import annotations

from itertools import accumulate

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import MLP
from taco_worker.models.plan.mlp_block import MoeSpec
from taco_worker.models.plan.ops.activation import ALPHA
from taco_worker.models.plan.parameters import EXPERT, Source
from taco_worker.models.plan.views import EveryRow, Transpose, View


def mixture_of_experts(fields: ConfigFields) -> MoeSpec:
    """The router and experts of each layer.

    Raises:
        ValueError: a field of config.json is missing or has an unsupported value.
    """
    size, hidden_size = fields.size("intermediate_size"), fields.size("hidden_size")
    gate_up, down = f"{MLP}.experts.gate_up_proj", f"{MLP}.experts.down_proj"
    stored = Transpose()  # matrices are [in, out]

    def alternating(name: str, *views: View) -> list[Source]:
        """Rows of gate and up, which alternate in the tensor."""
        views_of = [(*views, EveryRow(part, 2)) for part in (0, 1)]
        return [Source(name, i * size, size, one) for i, one in enumerate(views_of)]

    def by_expert(kind: str, **sizes: int) -> list[Source]:
        """Modules of each expert, side by side."""
        starts = accumulate(sizes.values(), initial=0)
        names = [f"{MLP}.experts.{EXPERT}.{name}_proj.{kind}" for name in sizes]
        return [
            Source(name, start, size)
            for name, start, size in zip(names, starts, sizes.values(), strict=False)
        ]

    return MoeSpec(
        fields.size("num_local_experts", default=128),
        fields.size("num_experts_per_tok", "experts_per_token", default=4),
        size,
        "swiglu_clipped",
        "softmax_topk",
        renormalize=False,
        router=(f"{MLP}.router",),
        gate_up=[alternating(gate_up, stored), by_expert("weight", gate=size, up=size)],
        down=[
            [Source(down, 0, hidden_size, (stored,))],
            by_expert("weight", down=hidden_size),
        ],
        router_bias=True,
        gate_up_bias=[alternating(f"{gate_up}_bias"), by_expert("bias", gate=size, up=size)],
        down_bias=[
            [Source(f"{down}_bias", 0, hidden_size)],
            by_expert("bias", down=hidden_size),
        ],
        alpha=fields.positive("swiglu_alpha", default=ALPHA),
        limit=fields.positive("swiglu_limit", default=7.0),
    )
