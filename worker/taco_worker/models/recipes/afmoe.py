"""AFMoE (Arcee Trinity): gated attention, rotary positions where there is a window, and experts."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import ATTENTION, LAYER, MLP, LayerNorms, decoder
from taco_worker.models.plan.llama_block import head_norms, llama_spec
from taco_worker.models.plan.mlp_block import MoeSpec, expert_layouts, gated_mlp
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.sliding_windows import windows_by_type

_NORMS = LayerNorms(
    attn_out=f"{LAYER}.post_attention_layernorm",
    mlp_in=f"{LAYER}.pre_mlp_layernorm",
    mlp_out=f"{LAYER}.post_mlp_layernorm",
)


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    bias, num_layers = (
        fields.flag("attention_bias", default=False),
        fields.size("num_hidden_layers"),
    )
    num_dense = fields.count("num_dense_layers", default=1)
    mixture = _experts(fields) if num_dense < num_layers else None
    period = fields.size("global_attn_every_n_layers", default=4)
    windows = windows_by_type(fields, period=period, default_window=1024)
    has_scale = fields.flag("mup_enabled", default=False)
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        eps=1e-5,
        default_head_dim=128,
        norms=_NORMS,
        windows=windows,
        mixtures=[None if layer < num_dense else mixture for layer in range(num_layers)],
        embedding_scale=fields.size("hidden_size") ** 0.5 if has_scale else 1.0,
    )
    attention = replace(
        spec.attention, head_norm=head_norms(spec.norm), gate=f"{ATTENTION}.gate_proj"
    )
    assert spec.rotary is not None
    tables = [None if window is None else "rope" for window in windows]
    rotary = replace(spec.rotary, tables=tables)
    return decoder(architecture, replace(spec, attention=attention, rotary=rotary))


def _experts(fields: ConfigFields) -> MoeSpec:
    fields.only("score_func", "sigmoid")
    fields.only("route_norm", True)
    for name in ("n_group", "topk_group", "num_expert_groups", "num_limited_groups"):
        fields.only(name, 1)
    size, hidden_size = fields.size("moe_intermediate_size"), fields.size("hidden_size")
    activation = fields.activation("hidden_act", default="silu")
    gate_up, down = expert_layouts(f"{MLP}.experts", size, hidden_size)
    shared = fields.size("num_shared_experts", default=2) * size
    return MoeSpec(
        fields.size("num_experts", default=64),
        fields.size("num_experts_per_tok", default=6),
        size,
        activation,
        "sigmoid",
        renormalize=True,
        router=(f"{MLP}.router.gate",),
        gate_up=gate_up,
        down=down,
        correction_bias=f"{MLP}.expert_bias",
        scale=fields.positive("route_scale", default=1.0),
        shared=gated_mlp(f"{MLP}.shared_experts", shared, hidden_size, activation),
    )
