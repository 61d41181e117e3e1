"""Reads the JSON files of a checkpoint, which may come from anyone, within bounds."""

import json
import os
import stat
from pathlib import Path
from typing import Any

# The largest config.json that is published has some 10 KiB, the largest index some 10 MiB.
MAX_CONFIG_BYTES = 16 * 2**20
# The largest tokenizer.json that is published has 33 MiB.
MAX_TOKENIZER_BYTES = 256 * 2**20


class JsonFileError(ValueError):
    """A file is no JSON object, or is too large; the message is one line and names the file."""


def read_json_object(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        FileNotFoundError: there is no such file.
        JsonFileError: it is not a regular file, cannot be read, has more than `max_bytes`, or holds
            no JSON object.
    """
    return parse_json_object(read_text_file(path, max_bytes), path)


def read_json_list(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> list[Any]:
    """The list in a JSON file; raises as `read_json_object` does."""
    content = _parse(read_text_file(path, max_bytes), path)
    if not isinstance(content, list):
        raise JsonFileError(f"cannot read {path}: it holds no JSON list")
    return content


def parse_json_object(text: str, path: Path) -> dict[str, Any]:
    """The object that `text`, the content of `path`, holds.

    A key that occurs twice is an error: two parsers may take different ones of them.

    Raises:
        JsonFileError: it holds none.
    """
    content = _parse(text, path)
    if not isinstance(content, dict):
        raise JsonFileError(f"cannot read {path}: it holds no JSON object")
    return content


def read_text_file(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> str:
    """The text of a regular file in UTF-8; links are followed.

    Raises:
        FileNotFoundError: there is no such file.
        JsonFileError: it is not a regular file, cannot be read, or has more than `max_bytes`.
    """
    try:
        # A pipe without a writer must not keep the reader waiting.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise JsonFileError(f"cannot read {path}: it is not a regular file")
            content = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise JsonFileError(f"cannot read {path}: {error.strerror}") from None
    if len(content) > max_bytes:
        raise JsonFileError(f"cannot read {path}: it is larger than {max_bytes} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise JsonFileError(f"cannot read {path}: it is not a text file in UTF-8") from None


def _parse(text: str, path: Path) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise JsonFileError(f"cannot read {path}: its JSON is nested too deeply") from None
    except ValueError as error:  # also an integer of too many digits
        raise JsonFileError(f"cannot read {path}: it is not valid JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:100]!r} occurs twice")
    return content
