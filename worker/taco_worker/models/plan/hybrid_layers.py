"""Which layers of a hybrid model have attention, and which a recurrence."""

from __future__ import annotations

from collections.abc import Sequence

from taco_worker.models.config_fields import ConfigFields

_ATTENTION = ("full_attention", "attention")


def recurrent_layers(
    fields: ConfigFields, kinds: Sequence[str], *, name: str = "layer_types"
) -> list[bool] | None:
    """Whether each layer is a recurrence; None: the config has no such list.

    Args:
        kinds: names of a recurrence in the list.
        name: field of the list.

    Raises:
        ValueError: a name is unknown.
    """
    given = fields.per_layer(name, fields.size("num_hidden_layers"))
    if given is None:
        return None
    allowed = (*kinds, *_ATTENTION)
    for kind in given:
        if kind not in allowed:
            raise ValueError(f"{name} must be {', '.join(allowed)}, not {kind!r:.100}")
    return [kind in kinds for kind in given]


def listed_layers(fields: ConfigFields, name: str) -> list[bool] | None:
    """Whether each layer's number is in a list; None: the config has no such list.

    Raises:
        ValueError: a number is not that of a layer.
    """
    given, num_layers = fields.get(name), fields.size("num_hidden_layers")
    if given is None:
        return None
    if not isinstance(given, list) or not all(one in range(num_layers) for one in given):
        raise ValueError(f"{name} must be a list of layers below {num_layers}, not {given!r:.100}")
    return [layer in given for layer in range(num_layers)]
