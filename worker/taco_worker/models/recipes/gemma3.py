"""Gemma 3, the text part: Gemma 2 with norms of heads, and another theta in layers with windows."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import head_norms, rotary_by_type
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.sliding_windows import FULL, SLIDING, layer_types, windows_by_type
from taco_worker.models.recipes.gemma import gemma_spec, with_caps
from taco_worker.models.rope_parsing import parse_layer_rotary

# Of Gemma3TextConfig: the larger models' text_config lists only what differs.
_DEFAULTS = {
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    given = {name: value for name, value in fields.values.items() if value is not None}
    fields = ConfigFields({**fields.values, **_DEFAULTS, **given})
    fields.only("attn_logit_softcapping", None)
    period = fields.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    local_theta = fields.positive("rope_local_base_freq", default=10_000.0)
    settings = parse_layer_rotary(
        fields.values, (FULL, SLIDING), unscaled={SLIDING: local_theta}, default_theta=1e6
    )
    spec = gemma_spec(
        fields,
        fields.activation("hidden_activation", default="gelu_pytorch_tanh"),
        rotary=rotary_by_type(settings, layer_types(fields, period)),
        windows=windows_by_type(fields, period=period, default_window=4096),
    )
    attention = replace(spec.attention, head_norm=head_norms(spec.norm))
    return decoder(architecture, with_caps(fields, replace(spec, attention=attention)))
