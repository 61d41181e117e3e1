"""OLMo 3: OLMo 2 with windows, and YaRN in the layers without one."""

from __future__ import annotations

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import llama_spec, rotary_by_type
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.sliding_windows import FULL, SLIDING, layer_types, windows_by_type
from taco_worker.models.recipes.olmo2 import olmo2
from taco_worker.models.rope_parsing import parse_layer_rotary

_PERIOD, _THETA = 4, 500_000.0


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    # Without settings by layer type, rope_theta is of the layers without a window.
    settings = parse_layer_rotary(
        fields.values, (FULL, SLIDING), unscaled={SLIDING: _THETA}, default_theta=_THETA
    )
    spec = llama_spec(
        fields,
        eps=1e-5,
        rotary=rotary_by_type(settings, layer_types(fields, _PERIOD)),
        windows=windows_by_type(fields, period=_PERIOD, default_window=4096),
    )
    return decoder(architecture, olmo2(fields, spec))
