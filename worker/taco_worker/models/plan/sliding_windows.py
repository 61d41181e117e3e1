"""Which layers of a model see only the last tokens, and how many."""

from __future__ import annotations

from collections.abc import Sequence

from taco_worker.models.config_fields import ConfigFields

# Values of layer_types.
SLIDING, FULL = "sliding_attention", "full_attention"


def windows_by_type(
    fields: ConfigFields, *, period: int | None = None, default_window: int | None = None
) -> list[int | None]:
    """Windows of layers by `layer_types`.

    Args:
        period: without layer_types, every `period`-th layer sees all tokens; None: all do.
        default_window: of configs without sliding_window.
    """
    kinds = layer_types(fields, period)
    window = fields.size("sliding_window", default=default_window) if SLIDING in kinds else None
    return [window if kind == SLIDING else None for kind in kinds]


def layer_types(fields: ConfigFields, period: int | None = None) -> Sequence[str]:
    """The type of each layer; see `windows_by_type`.

    Raises:
        ValueError: a type is unknown.
    """
    num_layers = fields.size("num_hidden_layers")
    given = fields.per_layer("layer_types", num_layers)
    if given is None:
        return [SLIDING if period and (layer + 1) % period else FULL for layer in range(num_layers)]
    for kind in given:
        if kind not in (SLIDING, FULL):
            raise ValueError(f"layer_types must be {SLIDING} or {FULL}, not {kind!r}")
    return given


def windows_by_depth(fields: ConfigFields, *, default_start: int = 28) -> list[int | None] | None:
    """Layers from max_window_layers on have a window; newer configs list it in layer_types.

    Args:
        default_start: max_window_layers of configs without it.
    """
    has_types = fields.get("layer_types") is not None
    kinds = layer_types(fields)
    if not fields.flag("use_sliding_window", default=False):
        if SLIDING in kinds:
            raise ValueError(f"layer_types has {SLIDING}, and use_sliding_window is false")
        return None
    window, num_layers = fields.size("sliding_window"), fields.size("num_hidden_layers")
    if has_types:
        return [window if kind == SLIDING else None for kind in kinds]
    first = fields.number("max_window_layers", default=default_start)
    return [window if layer >= first else None for layer in range(num_layers)]
