"""OLMo Hybrid: Gated DeltaNet in most layers, and OLMo 2's attention and norms in the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import RopeSpec, attention
from taco_worker.models.plan.builder import PlanBuilder
from taco_worker.models.plan.decoder_block import LAYER, LLAMA_NAMES
from taco_worker.models.plan.delta_block import renamed_in_layers
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.mlp_block import mlp
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.olmo2 import olmo2
from taco_worker.models.recipes.olmo_hybrid_layers import hybrid_mixers

_ATTN_IN = f"{LAYER}.input_layernorm"
_MLP_IN = _ATTN_OUT = f"{LAYER}.post_attention_layernorm"
_MLP_OUT = f"{LAYER}.post_feedforward_layernorm"
# Published names, and those of transformers.
_RENAMED = {
    "attention_layer_norm": "input_layernorm",
    "feedforward_layer_norm": "post_attention_layernorm",
}


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    spec = olmo2(fields, llama_spec(fields))
    sizes, norm = spec.sizes, spec.norm
    b = PlanBuilder(vocab_size=sizes.vocab_size, hidden_size=sizes.hidden_size)
    rope = None
    if _has_theta(fields) and spec.rotary is not None:
        dim = spec.attention.heads.head_dim
        rope = RopeSpec(b.rope_table("rope", spec.rotary.settings["rope"], dim), dim)
    b.embed(spec.embedding)
    for mixer in hybrid_mixers(fields):
        with b.layer():
            if mixer is not None:
                b.residual(mixer(b, b.norm(b.stream, "attn_norm", _ATTN_IN, norm)))
                b.residual(mlp(b, b.norm(b.stream, "mlp_norm", _MLP_IN, norm), spec.mlp))
            else:
                y = attention(b, b.stream, replace(spec.attention, rope=rope))
                b.residual(b.norm(y, "attn_out_norm", _ATTN_OUT, norm, out=y))
                y = mlp(b, b.stream, spec.mlp)
                b.residual(b.norm(y, "mlp_out_norm", _MLP_OUT, norm, out=y))
    b.final_norm(spec.final_norm, norm)
    b.head(spec.head.module, tied=spec.head.tied)
    names = renamed_in_layers(LLAMA_NAMES, sizes.num_layers, _RENAMED)
    return b.build(architecture, sizes.max_position_embeddings, names)


def _has_theta(fields: ConfigFields) -> bool:
    """Layers have no rotary positions where theta is null."""
    given: dict[str, Any] = {"rope_theta": 0.0, **fields.values}
    given |= fields.get("rope_parameters", "rope_scaling", default={})
    return given["rope_theta"] is not None
