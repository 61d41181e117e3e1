"""GLM 4.5: grouped-query attention with partial rotation, and DeepSeek V3's experts."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import head_norms, llama_spec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.recipes.deepseek import tensor_names
from taco_worker.models.recipes.deepseek_experts import mixture_of_experts


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    num_layers = fields.size("num_hidden_layers")
    num_dense = fields.count("first_k_dense_replace", default=1)
    mixture = None
    if num_dense < num_layers:
        mixture = mixture_of_experts(fields, architecture, default_scale=1.0, default_groups=1)
    spec = llama_spec(
        fields,
        qkv_bias=fields.flag("attention_bias", default=False),
        eps=1e-5,
        default_partial=0.5,
        mixtures=[None if layer < num_dense else mixture for layer in range(num_layers)],
        names=tensor_names(fields),
    )
    if fields.flag("use_qk_norm", default=False):
        attention = replace(spec.attention, head_norm=head_norms(spec.norm))
        spec = replace(spec, attention=attention)
    return decoder(architecture, spec)
