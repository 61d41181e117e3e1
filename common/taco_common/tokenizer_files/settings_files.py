"""The settings of a checkpoint's tokenizer: files beside its vocabulary."""

from pathlib import Path
from typing import Any

from taco_common.json_file import read_json_object


def read_settings(directory: Path) -> dict[str, Any]:
    """The content of tokenizer_config.json, and what only special_tokens_map.json has.

    Raises:
        JsonFileError: a file is no JSON object.
    """
    settings = read_optional_json(directory / "tokenizer_config.json")
    return read_optional_json(directory / "special_tokens_map.json") | settings


def read_added_ids(directory: Path) -> dict[str, Any]:
    """The content of added_tokens.json: ids by text. Raises as `read_settings` does."""
    return read_optional_json(directory / "added_tokens.json")


def read_optional_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty if there is no such file. Raises as `read_settings` does."""
    return read_json_object(path) if path.exists() else {}
