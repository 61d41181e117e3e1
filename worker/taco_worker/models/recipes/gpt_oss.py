"""gpt-oss: a mixture of experts in every layer, attention sinks, windows in every other layer."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import ATTENTION, MLP, Rotary, decoder
from taco_worker.models.plan.dequantization import Dequantization, Mxfp4
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.mlp_block import MoeSpec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.activation import ALPHA
from taco_worker.models.plan.parameters import Source
from taco_worker.models.plan.sliding_windows import windows_by_type
from taco_worker.models.plan.views import EveryRow, Transpose, View
from taco_worker.models.rope_parsing import parse_rotary

# The scaling of configs without one.
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    rope = fields.get("rope_parameters", "rope_scaling", default=_YARN)
    settings = parse_rotary({**fields.values, "rope_parameters": rope}, default_theta=150_000.0)
    bias = fields.flag("attention_bias", default=True)
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        eps=1e-5,
        default_head_dim=64,
        rotary=Rotary(settings={"rope": settings}),
        windows=windows_by_type(fields, period=2, default_window=128),
        mixtures=[_mixture_of_experts(fields)] * fields.size("num_hidden_layers"),
    )
    attention = replace(spec.attention, sinks=f"{ATTENTION}.sinks")
    return decoder(architecture, replace(spec, attention=attention))


def _mixture_of_experts(fields: ConfigFields) -> MoeSpec:
    size, hidden_size = fields.size("intermediate_size"), fields.size("hidden_size")
    gate_up, down = f"{MLP}.experts.gate_up_proj", f"{MLP}.experts.down_proj"
    stored = Transpose()  # matrices are [in, out], except those of MXFP4

    def alternating(name: str, *views: View, codes: Dequantization | None = None) -> list[Source]:
        """Rows of gate and up, which alternate in the tensor."""
        views_of = [(*views, EveryRow(part, 2)) for part in (0, 1)]
        return [Source(name, i * size, size, one, codes) for i, one in enumerate(views_of)]

    return MoeSpec(
        fields.size("num_local_experts", default=128),
        fields.size("num_experts_per_tok", "experts_per_token", default=4),
        size,
        "swiglu_clipped",
        "softmax_topk",
        renormalize=False,
        router=(f"{MLP}.router",),
        gate_up=[alternating(gate_up, stored), alternating(gate_up, codes=Mxfp4(hidden_size))],
        down=[
            [Source(down, 0, hidden_size, (stored,))],
            [Source(down, 0, hidden_size, dequantization=Mxfp4(size))],
        ],
        router_bias=True,
        gate_up_bias=alternating(f"{gate_up}_bias"),
        down_bias=[Source(f"{down}_bias", 0, hidden_size)],
        alpha=fields.positive("swiglu_alpha", default=ALPHA),
        limit=fields.positive("swiglu_limit", default=7.0),
    )
