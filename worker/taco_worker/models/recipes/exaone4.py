"""EXAONE 4: OLMo 2 with norms of each head; layers without a window have no rotary positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import decoder
from taco_worker.models.plan.llama_block import head_norms, llama_spec
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.sliding_windows import FULL, SLIDING, layer_types
from taco_worker.models.recipes.olmo2 import olmo2

_DEFAULT_WINDOW, _DEFAULT_PATTERN = 4096, 4


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.needs("num_key_value_heads")
    fields.only("attention_bias", False)
    spec = olmo2(fields, llama_spec(fields, eps=1e-5))
    assert spec.rotary is not None
    window = fields.optional_size("sliding_window")
    if "sliding_window" not in fields.values:
        window = _DEFAULT_WINDOW
    kinds = _kinds(fields, window)
    # Without a window in the config, all layers have rotary positions.
    tables = ["rope" if window is None or kind == SLIDING else None for kind in kinds]
    spec = replace(
        spec,
        attention=replace(spec.attention, head_norm=head_norms(spec.norm)),
        rotary=replace(spec.rotary, tables=tables),
        windows=[window if kind == SLIDING else None for kind in kinds],
    )
    return decoder(architecture, spec)


def _kinds(fields: ConfigFields, window: int | None) -> Sequence[str]:
    """The type of each layer: of `layer_types`, or of the pattern in configs without it.

    Raises:
        ValueError: layers slide without a window, or the pattern is of another form.
    """
    if fields.get("layer_types") is not None:
        kinds = layer_types(fields)
        if window is None and SLIDING in kinds:
            raise ValueError(f"layer_types has {SLIDING}, and sliding_window is null")
        return kinds
    num_layers = fields.size("num_hidden_layers")
    if window is None:
        return [FULL] * num_layers
    if not isinstance(pattern := fields.get("sliding_window_pattern"), str):
        return layer_types(fields, fields.size("sliding_window_pattern", default=_DEFAULT_PATTERN))
    if not pattern or {*pattern} - {*"LG"}:
        raise ValueError(
            f"sliding_window_pattern must be a number or letters L and G, not {pattern!r:.100}"
        )
    letters = [pattern[layer % len(pattern)] for layer in range(num_layers - 1)]
    return [*(SLIDING if letter == "L" else FULL for letter in letters), FULL]
