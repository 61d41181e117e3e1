"""The argument `lora_modules`: names and places of the LoRA adapters that requests may name."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from taco_proto.errors import ArgumentError

_FIELDS = {"name", "path"}
_UNUSED = {"base_model_name"}  # of vLLM: all adapters are those of the model


def as_texts(value: object) -> tuple[str, ...]:
    """The adapters as texts NAME=PATH.

    Args:
        value: a mapping of names to paths; or one text or mapping of an adapter, or several: texts
            NAME=PATH, and mappings with `name` and `path`, as vLLM takes them. A text may also be
            the JSON of a mapping.

    Raises:
        ArgumentError: it is something else, a name or path is empty, or a name occurs twice.
    """
    pairs = list(_pairs(value))
    names = [name for name, _ in pairs]
    for name, path in pairs:
        if not name or not path or "=" in name or not name.isprintable():
            raise ArgumentError(
                f"lora_modules has {name!r:.100} = {path!r:.100}: an adapter has a name without "
                "'=', and a path"
            )
        if names.count(name) > 1:
            raise ArgumentError(f"lora_modules has the name {name!r:.100} twice")
    return tuple(f"{name}={path}" for name, path in pairs)


def split(module: str) -> tuple[str, str]:
    """The name and the path of a text NAME=PATH."""
    name, _, path = module.partition("=")
    return name, path


def _pairs(value: object) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping) and not value.keys() >= _FIELDS:
        yield from _by_name(value)
        return
    each: Iterable[Any] = [value] if isinstance(value, str | Mapping) else value  # type: ignore[assignment]
    try:
        modules = list(each)
    except TypeError:
        raise _invalid(value) from None
    for module in modules:
        yield from _pairs_of(module)


def _pairs_of(module: object) -> Iterable[tuple[str, str]]:
    if isinstance(module, str) and module.lstrip().startswith("{"):
        try:
            module = json.loads(module)
        except ValueError as error:
            raise ArgumentError(f"lora_modules has {module!r:.200}, no JSON: {error}") from None
    if isinstance(module, str) and "=" in module:
        return [split(module)]
    if isinstance(module, Mapping):
        if _FIELDS <= module.keys() <= _FIELDS | _UNUSED:
            return [_checked(module["name"], module["path"])]
        if not module.keys() & _FIELDS:  # a configuration file gives a mapping as one JSON text
            return _by_name(module)
    raise _invalid(module)


def _by_name(paths: Mapping[Any, Any]) -> Iterable[tuple[str, str]]:
    return [_checked(name, path) for name, path in paths.items()]


def _checked(name: object, path: object) -> tuple[str, str]:
    if not isinstance(name, str) or (not hasattr(path, "__fspath__") and not isinstance(path, str)):
        raise _invalid({name: path})
    return name, str(path)


def _invalid(value: object) -> ArgumentError:
    return ArgumentError(
        f"lora_modules has {value!r:.200}: give NAME=PATH, or an object with name and path"
    )
