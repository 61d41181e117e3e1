"""Loads the formats of `--tool-parser-plugin` and `--reasoning-parser-plugin`."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from taco_common.json_file import JsonFileError, read_json_object
from taco_gateway.text.response.formats import ReasoningFormat, ToolFormat
from taco_gateway.text.response.plugin_parsers import ReasoningParser, ToolParser
from taco_gateway.text.response.response_template import reasoning_format, tool_format
from taco_gateway.text.response.template_patterns import TemplateError
from taco_proto.errors import ConfigurationError

Tools = ToolFormat | type[ToolParser]
Reasoning = ReasoningFormat | type[ReasoningParser]
T = TypeVar("T")


def load_tools(place: str) -> dict[str, Tools]:
    """The tool formats of a plug-in, by name.

    Args:
        place: a Python file or module with `TOOL_FORMATS`, or a JSON file with a response template,
            whose name is that of the file.

    Raises:
        ConfigurationError: it cannot be loaded, or holds something else.
    """

    def read(value: Any) -> Tools | None:
        if isinstance(value, ToolFormat):
            return value
        if isinstance(value, type) and issubclass(value, ToolParser):
            return value
        return tool_format(value) if isinstance(value, Mapping) else None

    return _load("--tool-parser-plugin", place, "TOOL_FORMATS", "a ToolFormat, a ToolParser", read)


def load_reasoning(place: str) -> dict[str, Reasoning]:
    """The reasoning formats of a plug-in, by name; see `load_tools`.

    Raises:
        ConfigurationError: it cannot be loaded, or holds something else.
    """

    def read(value: Any) -> Reasoning | None:
        if isinstance(value, ReasoningFormat):
            return value
        if isinstance(value, type) and issubclass(value, ReasoningParser):
            return value
        return reasoning_format(value) if isinstance(value, Mapping) else None

    kinds = "a ReasoningFormat, a ReasoningParser"
    return _load("--reasoning-parser-plugin", place, "REASONING_FORMATS", kinds, read)


def _load(
    flag: str, place: str, attribute: str, kinds: str, read: Callable[[Any], T | None]
) -> dict[str, T]:
    formats: dict[str, T] = {}
    for name, value in _content(flag, place, attribute).items():
        try:
            found = read(value)
        except TemplateError as error:
            raise ConfigurationError(f"{flag} {place}: {name}: {error}") from None
        if found is None or not isinstance(name, str):
            raise ConfigurationError(
                f"{flag} {place}: {name!r} in {attribute} is a {type(value).__name__}; it must be "
                f"{kinds} or a response template"
            )
        formats[name] = found
    return formats


def _content(flag: str, place: str, attribute: str) -> Mapping[Any, Any]:
    """The formats of a plug-in, by name, not yet checked."""
    path = Path(place).expanduser()
    if path.suffix == ".json":
        try:
            return {path.stem: read_json_object(path)}
        except FileNotFoundError:
            raise ConfigurationError(f"{flag} {place}: there is no such file") from None
        except JsonFileError as error:
            raise ConfigurationError(f"{flag} {place}: {error}") from None
    try:
        module = _run_file(path) if path.suffix == ".py" else importlib.import_module(place)
        formats = getattr(module, attribute)
    except Exception as error:  # the plug-in's code may raise any exception
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ConfigurationError(f"{flag} {place}: {reason}") from None
    if not isinstance(formats, Mapping) or not formats:
        raise ConfigurationError(f"{flag} {place}: {attribute} is not a dict with formats by name")
    return formats


def _run_file(path: Path) -> ModuleType:
    name = f"taco_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # as of every file with the suffix .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
