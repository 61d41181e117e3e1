"""dots.llm1: Qwen 3's attention and DeepSeek V3's experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import head_norms, llama_spec
from taco_worker.models.plan.mlp_block import MoeSpec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.sliding_windows import windows_by_type
from taco_worker.models.recipes.deepseek_experts import mixture_of_experts


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    bias = fields.flag("attention_bias", default=False)
    num_layers = fields.size("num_hidden_layers")
    num_dense = fields.count("first_k_dense_replace", default=0)
    mixture = _experts(fields, architecture) if num_dense < num_layers else None
    spec = llama_spec(
        fields,
        qkv_bias=bias,
        out_bias=bias,
        windows=_windows(fields),
        mixtures=[None if layer < num_dense else mixture for layer in range(num_layers)],
    )
    attention = replace(spec.attention, head_norm=head_norms(spec.norm))
    return decoder(architecture, replace(spec, attention=attention))


def _experts(fields: ConfigFields, architecture: str) -> MoeSpec:
    # Published configs name the method of the choice here, which is that of sigmoids.
    fields.only("scoring_func", "sigmoid", "noaux_tc")
    others = ConfigFields({**fields.values, "scoring_func": None})
    mixture = mixture_of_experts(others, architecture, default_scale=1.0, default_groups=1)
    return replace(mixture, renormalize=fields.flag("norm_topk_prob", default=False))


def _windows(fields: ConfigFields) -> Sequence[int | None]:
    """As in transformers, whose class has no use_sliding_window."""
    default = None if "sliding_window" in fields.values else 4096
    if fields.get("layer_types") is not None:
        return windows_by_type(fields, default_window=default)
    window = fields.optional_size("sliding_window") or default
    first = fields.count("max_window_layers", default=62)
    layers = range(fields.size("num_hidden_layers"))
    return [window if layer >= first else None for layer in layers]
