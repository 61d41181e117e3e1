"""Command R7B: Command R with windows, and rotary positions only in the layers with one."""

from __future__ import annotations

from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import rotary_by_type
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.sliding_windows import FULL, SLIDING, layer_types, windows_by_type
from taco_worker.models.recipes.cohere import cohere_spec
from taco_worker.models.rope_parsing import parse_rotary


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.only("use_qk_norm", False)
    period = fields.size("sliding_window_pattern", "_sliding_window_pattern", default=4)
    settings = {SLIDING: parse_rotary(fields.values), FULL: None}
    rotary = rotary_by_type(settings, layer_types(fields, period))
    windows = windows_by_type(fields, period=period, default_window=4096)
    return decoder(architecture, replace(cohere_spec(fields, rotary=rotary), windows=windows))
