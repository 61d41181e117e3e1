"""Phi 3.5 MoE: Mixtral with LayerNorm, biases, LongRoPE and the router sparsemixer."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import layer_norm
from taco_worker.models.plan.decoder_block import LAYER, MLP, decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.mixtral import mixture_of_experts


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    fields.only("num_experts_per_tok", 2)  # the router's definition
    bias = fields.flag("attention_bias", default=False)
    num_layers = fields.size("num_hidden_layers")
    mixture = replace(
        mixture_of_experts(fields, default_experts=16),
        kind="sparsemixer",
        renormalize=False,
        router=(f"{LAYER}.block_sparse_moe.gate", f"{MLP}.router"),
        jitter=fields.number("router_jitter_noise", default=0.01),
    )
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        default_theta=1_000_000.0,
        norm=layer_norm(fields.epsilon("rms_norm_eps", default=1e-5)),
        windows=[fields.optional_size("sliding_window")] * num_layers,
        mixtures=[mixture] * num_layers,
    )
    head = replace(spec.head, bias=fields.flag("lm_head_bias", default=False))
    return decoder(architecture, replace(spec, head=head))
