"""StableLM: LayerNorms, partial rotation, and in 12B norms of each head with its own weights."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import layer_norm
from taco_worker.models.plan.decoder_block import LayerNorms, decoder
from taco_worker.models.plan.llama_block import head_norms, llama_spec
from taco_worker.models.plan.model_plan import ModelPlan

_HEAD_WEIGHTS = "layernorm.norms.{head}"


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    eps = fields.epsilon("layer_norm_eps", "norm_eps", default=1e-5)
    spec = llama_spec(
        fields,
        qkv_bias=fields.flag("use_qkv_bias", default=False),
        default_partial=0.25,
        norm=layer_norm(eps),
    )
    if fields.flag("use_parallel_residual", default=False):
        spec = replace(spec, norms=LayerNorms(mlp_in=None, sums="parallel"))
    if fields.flag("qk_layernorm", default=False):
        names = f"q_{_HEAD_WEIGHTS}", f"k_{_HEAD_WEIGHTS}"
        norms = head_norms(layer_norm(eps, bias=False), *names)
        spec = replace(spec, attention=replace(spec.attention, head_norm=norms))
    return decoder(architecture, spec)
