"""Reads the JSON files of a checkpoint, which are untrusted input, with size limits."""

import json
import os
import stat
from pathlib import Path
from typing import Any

# The largest published config.json has about 10 KiB, the largest weight index about 10 MiB.
MAX_CONFIG_BYTES = 16 * 2**20
# The largest published tokenizer.json has 33 MiB.
MAX_TOKENIZER_BYTES = 256 * 2**20


class JsonFileError(ValueError):
    """A file is not valid JSON or too large; the message is one line and names the file."""


def read_json_object(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        FileNotFoundError: there is no such file.
        JsonFileError: it is not a regular file, cannot be read, has more than `max_bytes`, or is
            not a JSON object.
    """
    return parse_json_object(read_text_file(path, max_bytes), path)


def read_json_list(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> list[Any]:
    """The list in a JSON file; raises as `read_json_object` does."""
    content = _parse(read_text_file(path, max_bytes), path)
    if not isinstance(content, list):
        raise JsonFileError(f"cannot read {path}: it is not a JSON list")
    return content


def parse_json_object(text: str, path: Path) -> dict[str, Any]:
    """Parses `text`, the content of `path`, as a JSON object.

    A key that occurs twice is an error: two parsers may use different values.

    Raises:
        JsonFileError: it is not a JSON object.
    """
    content = _parse(text, path)
    if not isinstance(content, dict):
        raise JsonFileError(f"cannot read {path}: it is not a JSON object")
    return content


def read_text_file(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> str:
    """The text of a regular file in UTF-8; links are followed.

    Raises:
        FileNotFoundError: there is no such file.
        JsonFileError: it is not a regular file, cannot be read, or has more than `max_bytes`.
    """
    try:
        return read_binary_file(path, max_bytes).decode()
    except UnicodeDecodeError:
        raise JsonFileError(f"cannot read {path}: it is not a text file in UTF-8") from None


def read_binary_file(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> bytes:
    """The bytes of a regular file; raises as `read_text_file` does."""
    try:
        # Opening a pipe without a writer must not block.
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
    return content


def _parse(text: str, path: Path) -> Any:
    try:
        return json.loads(text, object_pairs_hook=unique_keys)
    except RecursionError:
        raise JsonFileError(f"cannot read {path}: its JSON is nested too deeply") from None
    except ValueError as error:  # also an integer of too many digits
        raise JsonFileError(f"cannot read {path}: it is not valid JSON: {error}") from None


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """`object_pairs_hook` of `json.loads`; raises ValueError for a key that occurs twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:100]!r} occurs twice")
    return content
