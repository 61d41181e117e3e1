"""MiniMax-M2: Mixtral with a sigmoid router, norms of whole queries and keys, partial rotation."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.attention_block import HeadNorm
from taco_worker.models.plan.decoder_block import ATTENTION, LAYER, MLP, decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.mlp_block import MoeSpec
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames
from taco_worker.models.recipes.deepseek import tensor_names
from taco_worker.models.recipes.mixtral import mixture_of_experts

_BIAS = "e_score_correction_bias"
_FULL_ATTENTION = 1  # in attn_type_list


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    _check(fields)
    num_layers, head_dim = fields.size("num_hidden_layers"), fields.size("head_dim", default=128)
    spec = llama_spec(
        fields,
        default_head_dim=128,
        default_theta=5e6,
        default_partial=fields.size("rotary_dim", default=head_dim) / head_dim,
        mixtures=[_experts(fields)] * num_layers,
        names=_names(fields),
    )
    norm = HeadNorm(f"{ATTENTION}.q_norm", f"{ATTENTION}.k_norm", spec.norm, is_per_head=False)
    return decoder(architecture, replace(spec, attention=replace(spec.attention, head_norm=norm)))


def _experts(fields: ConfigFields) -> MoeSpec:
    fields.only("scoring_func", "sigmoid")
    return replace(
        mixture_of_experts(fields, default_experts=256, default_top_k=8),
        kind="sigmoid",
        correction_bias=(f"{LAYER}.block_sparse_moe.{_BIAS}", f"{MLP}.{_BIAS}"),
    )


def _check(fields: ConfigFields) -> None:
    """Reject values that MiniMax's code knows and no published model has."""
    fields.only("use_qk_norm", True)
    fields.only("qk_norm_type", "per_layer")
    fields.only("use_routing_bias", True)
    fields.only("shared_intermediate_size", 0)
    fields.only("sliding_window", None)
    kinds = fields.per_layer("attn_type_list", fields.size("num_hidden_layers")) or ()
    for kind in kinds:
        if kind != _FULL_ATTENTION:
            raise ValueError(f"attn_type_list {kind!r} is not supported, only {_FULL_ATTENTION}")


def _names(fields: ConfigFields) -> TensorNames:
    """Without the layers after the last, which predict further tokens."""
    layers_per_module = fields.size("mtp_transformer_layers", default=1)
    extra = fields.count("num_mtp_modules", default=0) * layers_per_module
    return tensor_names(ConfigFields({**fields.values, "num_nextn_predict_layers": extra}))
