"""Typed access to the fields of a config.json; every error names the field and its value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from taco_worker.models.plan.ops.activation import ACTIVATIONS, ActivationKind

MAX_SIZE = 2**24  # larger than in any published model, and than any scaled length


class ConfigFields:
    """A config.json. Methods take a field's name and older names of the same field.

    Raises:
        KeyError: the field is missing (or null) and there is no default; it names the first name.
        ValueError: the value is not allowed.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def size(self, *names: str, default: int | None = None) -> int:
        """A positive integer."""
        name, value = self._find(names, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a positive integer, not {value!r}")
        if value > MAX_SIZE:
            raise ValueError(f"{name} is {value}, and at most {MAX_SIZE} is supported")
        return value

    def count(self, *names: str, default: int | None = None) -> int:
        """An integer, 0 or above."""
        name, value = self._find(names, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name} must be an integer, 0 or above, not {value!r}")
        return value

    def number(self, *names: str, default: float | None = None) -> float:
        """A finite number."""
        name, value = self._find(names, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} must be a number, not {value!r}")
        if not math.isfinite(value):
            raise ValueError(f"{name} must be finite, not {value!r}")
        return float(value)

    def positive(self, *names: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.number(*names, default=default)
        if value <= 0:
            raise ValueError(f"{names[0]} must be above 0, not {value!r}")
        return value

    def epsilon(self, *names: str, default: float | None = None) -> float:
        """The epsilon of a norm: a finite number, 0 or above."""
        value = self.number(*names, default=default)
        if value < 0:
            raise ValueError(f"{names[0]} must be 0 or above, not {value!r}")
        return value

    def flag(self, *names: str, default: bool | None = None) -> bool:
        name, value = self._find(names, default)
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, not {value!r}")
        return value

    def text(self, *names: str, default: str | None = None) -> str:
        name, value = self._find(names, default)
        if not isinstance(value, str):
            raise ValueError(f"{name} must be a string, not {value!r}")
        return value

    def activation(self, *names: str, default: str | None = None) -> ActivationKind:
        value = self.text(*names, default=default)
        if value not in ACTIVATIONS:
            known = ", ".join(sorted(ACTIVATIONS))
            raise ValueError(f"unknown activation {value!r}; known: {known}")
        return ACTIVATIONS[value]

    def optional_size(self, *names: str) -> int | None:
        """A positive integer, or None if the field is missing or null."""
        return None if self.get(*names) is None else self.size(*names)

    def nullable_size(self, name: str) -> int | None:
        """A positive integer, or None if the field is null; it must be there."""
        self.needs(name)
        return self.optional_size(name)

    def optional_number(self, *names: str) -> float | None:
        return None if self.get(*names) is None else self.number(*names)

    def optional_positive(self, *names: str) -> float | None:
        return None if self.get(*names) is None else self.positive(*names)

    def get(self, *names: str, default: Any = None) -> Any:
        """The first field that is there and not null, as it is."""
        return next((self.values[n] for n in names if self.values.get(n) is not None), default)

    def needs(self, *names: str) -> None:
        """Refuse a config without a field, where the published class has a number for it.

        Raises:
            KeyError: a field is missing. null is a value.
        """
        for name in names:
            if name not in self.values:
                raise KeyError(name)

    def only(self, name: str, *allowed: object) -> None:
        """Refuse values of a field that change the model in a way that is not supported.

        Args:
            allowed: supported values, the default first.
        """
        value = self.values.get(name)
        if value is not None and value not in allowed:
            shown = ", ".join(repr(one) for one in allowed)
            raise ValueError(f"{name} {value!r} is not supported, only {shown}")

    def per_layer(self, name: str, num_layers: int) -> Sequence[Any] | None:
        """A list with one item per layer, or None if the field is missing or null."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != num_layers:
            raise ValueError(f"{name} must be a list of {num_layers} items, not {value!r:.100}")
        return value

    def _find(self, names: tuple[str, ...], default: Any) -> tuple[str, Any]:
        for name in names:
            if self.values.get(name) is not None:
                return name, self.values[name]
        if default is not None:
            return names[0], default
        if names[0] in self.values:
            return names[0], None
        raise KeyError(names[0])
