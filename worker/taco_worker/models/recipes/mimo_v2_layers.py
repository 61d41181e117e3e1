"""Which layers of MiMo-V2-Flash have windows and experts, in both forms of its configs."""

from __future__ import annotations

from collections.abc import Sequence

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.sliding_windows import FULL, SLIDING, layer_types

_DENSE, _SPARSE = "dense", "sparse"  # values of mlp_layer_types
_PERIOD = 6  # layers, one of which sees all tokens


def attention_types(fields: ConfigFields) -> Sequence[str]:
    """The type of each layer, of `layer_types` or of the published `hybrid_layer_pattern`."""
    num_layers = fields.size("num_hidden_layers")
    if fields.get("layer_types") is not None:
        return layer_types(fields)
    pattern = fields.per_layer("hybrid_layer_pattern", num_layers)
    if pattern is None:
        return [
            FULL if layer == 0 or (layer + 1) % _PERIOD == 0 else SLIDING
            for layer in range(num_layers)
        ]
    return [SLIDING if one else FULL for one in _flags("hybrid_layer_pattern", pattern)]


def have_experts(fields: ConfigFields) -> Sequence[bool]:
    """Whether each layer has experts, by `mlp_layer_types` or the published `moe_layer_freq`."""
    num_layers = fields.size("num_hidden_layers")
    kinds = fields.per_layer("mlp_layer_types", num_layers)
    if kinds is not None:
        for kind in kinds:
            if kind not in (_DENSE, _SPARSE):
                raise ValueError(f"mlp_layer_types must be {_DENSE} or {_SPARSE}, not {kind!r}")
        return [kind == _SPARSE for kind in kinds]
    given = fields.per_layer("moe_layer_freq", num_layers)
    if given is None:
        return [layer > 0 for layer in range(num_layers)]
    return _flags("moe_layer_freq", given)


def read_window(fields: ConfigFields) -> int:
    """As in transformers, published configs count the tokens before the one that sees them."""
    before = fields.optional_size("sliding_window_size")
    return fields.size("sliding_window", default=129) if before is None else before + 1


def _flags(name: str, given: Sequence[object]) -> list[bool]:
    if not all(one in (0, 1) for one in given):
        raise ValueError(f"{name} must be a list of 0 and 1, not {given!r:.100}")
    return [bool(one) for one in given]
