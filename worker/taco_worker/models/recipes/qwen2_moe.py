"""Qwen 1.5 MoE and Qwen 2 MoE: Qwen 2 with experts and a gated shared expert in some layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import MLP, decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.mlp_block import MoeSpec, expert_layouts, gated_mlp
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.sliding_windows import windows_by_depth


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    experts = qwen_experts(fields, fields.size("moe_intermediate_size"))
    shared = gated_mlp(
        f"{MLP}.shared_expert",
        fields.size("shared_expert_intermediate_size"),
        fields.size("hidden_size"),
        experts.activation,
    )
    mixture = replace(experts, shared=shared, shared_gate=f"{MLP}.shared_expert_gate")
    spec = llama_spec(
        fields,
        qkv_bias=fields.flag("qkv_bias", default=True),
        windows=_windows(fields),
        mixtures=mixtures(fields, mixture),
    )
    return decoder(architecture, spec)


def qwen_experts(fields: ConfigFields, size: int) -> MoeSpec:
    """Experts of `size`, chosen by a softmax over all."""
    gate_up, down = expert_layouts(f"{MLP}.experts", size, fields.size("hidden_size"))
    return MoeSpec(
        fields.size("num_experts", "num_local_experts"),
        fields.size("num_experts_per_tok"),
        size,
        fields.activation("hidden_act", default="silu"),
        "softmax",
        renormalize=fields.flag("norm_topk_prob", default=False),
        router=(f"{MLP}.gate",),
        gate_up=gate_up,
        down=down,
    )


def mixtures(fields: ConfigFields, mixture: MoeSpec) -> list[MoeSpec | None]:
    """The mixture of each layer; None: the layer has an MLP."""
    step = fields.size("decoder_sparse_step", default=1)
    dense = fields.get("mlp_only_layers", default=[])
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise ValueError(f"mlp_only_layers must be a list of layers, not {dense!r}")
    return [
        None if layer in dense or (layer + 1) % step else mixture
        for layer in range(fields.size("num_hidden_layers"))
    ]


def _windows(fields: ConfigFields) -> Sequence[int | None] | None:
    """As in transformers: without layer_types every other layer below max_window_layers slides."""
    if fields.get("layer_types") or not fields.flag("use_sliding_window", default=False):
        return windows_by_depth(fields)
    end = fields.count("max_window_layers", default=28)
    window = fields.size("sliding_window")
    layers = range(fields.size("num_hidden_layers"))
    return [window if layer % 2 == 0 and layer < end else None for layer in layers]
