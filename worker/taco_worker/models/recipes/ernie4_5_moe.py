"""ERNIE 4.5 MoE: ERNIE 4.5 with experts that probabilities with a bias choose."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import LLAMA_NAMES, MLP, Head, decoder
from taco_worker.models.plan.llama_block import llama_mlp, llama_spec
from taco_worker.models.plan.mlp_block import MoeSpec, expert_layouts, gated_mlp
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.parameters import Source
from taco_worker.models.plan.views import Flatten

# Without the layers that predict further tokens.
_NAMES = replace(LLAMA_NAMES, ignored=(*LLAMA_NAMES.ignored, r"^model\.mtp_"))
# As published, and as transformers 5 saves it.
_BIASES = tuple(
    f"{MLP}.{name}.e_score_correction_bias" for name in ("moe_statics", "gate.moe_statics")
)


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    fields.only("compression_ratio", 1.0)  # a divisor of positions in the first published code
    bias = fields.flag("use_bias", default=False)
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        eps=1e-5,
        default_theta=500_000.0,
        mlp=llama_mlp(fields, bias=bias),
        mixtures=_mixtures(fields, bias),
        head=Head(tied=fields.flag("tie_word_embeddings", default=True), bias=bias),
        names=_NAMES,
    )
    assert spec.rotary is not None
    return decoder(architecture, replace(spec, rotary=replace(spec.rotary, style="interleaved")))


def _mixtures(fields: ConfigFields, bias: bool) -> list[MoeSpec | None]:
    """The mixture of each layer; None: the layer has an MLP."""
    num_layers = fields.size("num_hidden_layers")
    first = fields.count("moe_layer_start_index", default=1)
    last = fields.number("moe_layer_end_index", default=-1)
    last = num_layers - 1 if last == -1 else last
    step = fields.size("moe_layer_interval", default=1)
    mixture = _experts(fields, bias)
    return [
        mixture if first <= layer <= last and (layer + 1) % step == 0 else None
        for layer in range(num_layers)
    ]


def _experts(fields: ConfigFields, bias: bool) -> MoeSpec:
    fields.only("moe_norm_min", 1e-12)  # the least divisor of the weights
    count, hidden_size = fields.size("moe_num_experts", default=64), fields.size("hidden_size")
    size = fields.size("moe_intermediate_size", default=1536)
    activation = fields.activation("hidden_act", default="silu")
    gate_up, down = expert_layouts(f"{MLP}.experts", size, hidden_size)
    shared_size = size * fields.count("moe_num_shared_experts", default=2)
    shared = gated_mlp(f"{MLP}.shared_experts", shared_size, hidden_size, activation, bias=bias)
    return MoeSpec(
        count,
        fields.size("moe_k", default=6),
        size,
        activation,
        "softmax",
        renormalize=True,
        router=(f"{MLP}.gate",),
        gate_up=gate_up,
        down=down,
        correction_bias=[Source(name, 0, count, (Flatten((1, count)),)) for name in _BIASES],
        shared=shared if shared_size else None,
    )
