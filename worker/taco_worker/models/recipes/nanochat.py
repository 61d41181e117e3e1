"""nanochat: Llama with norms without weights, squared ReLU, and heads that turn the other way."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import HeadNorm
from taco_worker.models.plan.builder import NormSpec
from taco_worker.models.plan.decoder_block import ATTENTION, decoder
from taco_worker.models.plan.llama_block import llama_spec, two_layer_mlp
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.views import SwappedHalves


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    bias = fields.flag("attention_bias", default=False)
    activation = fields.activation("hidden_act", default="relu2")
    norm = NormSpec("rms", fields.epsilon("rms_norm_eps", default=1e-6), has_weight=False)
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        mlp=two_layer_mlp(fields, "fc1", "fc2", activation, bias=False),
        norm=norm,
        embedding_norm="model.norm",
    )
    # Rotation by the opposite angle is the usual one of heads whose halves are swapped.
    query, key, value = spec.attention.qkv
    view = SwappedHalves(spec.attention.heads.head_dim)
    attention = replace(
        spec.attention,
        qkv=[replace(query, views=(view,)), replace(key, views=(view,)), value],
        head_norm=HeadNorm(f"{ATTENTION}.q_norm", f"{ATTENTION}.k_norm", norm, is_after_rope=True),
    )
    cap: float | None = 15.0
    if "final_logit_softcapping" in fields.values:
        cap = fields.optional_positive("final_logit_softcapping")
    return decoder(
        architecture, replace(spec, attention=attention, head=replace(spec.head, cap=cap))
    )
