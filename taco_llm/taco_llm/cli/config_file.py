"""`--config FILE`: reads options from a YAML file; flags on the command line override them."""

import json
from pathlib import Path
from typing import Any

import yaml

from taco_proto.errors import ConfigurationError


def read_config_file(path: str) -> list[str]:
    """The options of a YAML file as command-line arguments.

    `port: 8000` becomes `--port=8000`. true and false turn a switch on and off, a list repeats its
    flag, and a mapping is passed as JSON, also in a list.

    Raises:
        ConfigurationError: the file cannot be read, or is not a YAML mapping of options.
    """
    try:
        options = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigurationError(f"cannot read {path}: {reason}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise ConfigurationError(f"{path} is not valid YAML{where}") from None
    if options is None:
        return []
    if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
        raise ConfigurationError(f"{path} must be a YAML mapping of options, such as port: 8000")
    return [argument for name, value in options.items() for argument in _arguments(name, value)]


def _arguments(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag if value else "--no-" + flag.removeprefix("--")]
    entries = value if isinstance(value, list) else [value]
    texts = (json.dumps(entry) if isinstance(entry, dict) else entry for entry in entries)
    return [f"{flag}={text}" for text in texts]
