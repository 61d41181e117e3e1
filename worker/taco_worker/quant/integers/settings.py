"""Typed access to a `quantization_config`; every error names the setting and its value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taco_worker.quant.config_files import source_of

_MAX_GROUP_SIZE = 2**24


class Settings:
    """A `quantization_config`, or the settings of some of its modules.

    Methods take a setting's name and older names of the same setting. A null counts as missing.

    Raises:
        ValueError: a value is not allowed, or missing without a default.
    """

    def __init__(self, values: Mapping[str, Any], name: str | None = None) -> None:
        """`name`: where the values are; None: as `StoredSettings` say."""
        self._values = values
        self._name = source_of(values) if name is None else name

    @property
    def name(self) -> str:
        """Where the settings are: quantization_config, or a file."""
        return self._name

    def over(self, defaults: Settings) -> Settings:
        """These settings, and the defaults for those that are missing here."""
        own = {key: value for key, value in self._values.items() if value is not None}
        return Settings({**defaults._values, **own}, self._name)

    def bits(self, allowed: Sequence[int], *names: str) -> int:
        """Bits of a stored number."""
        name, value = self._find(names)
        if isinstance(value, bool) or value not in allowed:
            raise self._error(name, value, " or ".join(map(str, allowed)))
        return int(value)

    def group_size(self, *names: str, default: int | None = None) -> int | None:
        """Columns of a group; None: a row is one group, which the setting says with -1."""
        name, value = self._find(names, default)
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if is_integer and value == -1:
            return None
        if not is_integer or not 1 <= value <= _MAX_GROUP_SIZE:
            raise self._error(name, value, "-1 or a positive integer")
        return int(value)

    def integer(self, *names: str, default: int) -> int:
        name, value = self._find(names, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._error(name, value, "an integer")
        return value

    def flag(self, *names: str, default: bool) -> bool:
        name, value = self._find(names, default)
        if not isinstance(value, bool):
            raise self._error(name, value, "true or false")
        return value

    def text(self, *names: str, default: str) -> str:
        """A text, in lower case."""
        name, value = self._find(names, default)
        if not isinstance(value, str):
            raise self._error(name, value, "a text")
        return value.lower()

    def choice(self, allowed: Sequence[str], *names: str, default: str) -> str:
        """One of some texts, in any case."""
        value = self.text(*names, default=default)
        if value not in allowed:
            raise self._error(names[0], value, " or ".join(allowed))
        return value

    def names(self, *names: str) -> tuple[str, ...]:
        """Names of modules: a list of them, a list of such lists, or a text with commas."""
        name, value = self._find(names, ())
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(","))
        found: list[str] = []
        for one in value if isinstance(value, list | tuple) else [value]:
            found += one if isinstance(one, list | tuple) else [one]
        if not all(isinstance(one, str) for one in found):
            raise self._error(name, value, "a list of names")
        return tuple(found)

    def parts(self, *names: str) -> dict[str, Settings]:
        """Settings of some modules, by what names these modules, in the order of the file."""
        name, value = self._find(names, {})
        if not isinstance(value, Mapping):
            raise self._error(name, value, "an object")
        for key, part in value.items():
            if not isinstance(part, Mapping):
                raise self._error(f"{name}[{key!r}]", part, "an object")
        return {key: Settings(part, f"{self._name}.{name}[{key!r}]") for key, part in value.items()}

    def _find(self, names: Sequence[str], default: Any = None) -> tuple[str, Any]:
        """The name that is set, and its value."""
        for name in names:
            if self._values.get(name) is not None:
                return name, self._values[name]
        if default is None:
            raise ValueError(f"{self._name} has no {names[0]}")
        return names[0], default

    def _error(self, name: str, value: object, allowed: str) -> ValueError:
        return ValueError(f"{self._name}.{name} is {value!r}; it must be {allowed}")
