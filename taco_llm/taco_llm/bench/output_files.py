"""Result files of benchmarks. They are checked before the run, so that no run is lost."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from taco_proto.errors import ArgumentError, ConfigurationError

SERVE_SUFFIXES = (".csv", ".json", ".png")
OFFLINE_SUFFIXES = (".json",)


def check_suffixes(paths: Iterable[str], suffixes: tuple[str, ...]) -> None:
    """Raises ConfigurationError if a path has none of the suffixes."""
    for path in paths:
        if Path(path).suffix not in suffixes:
            raise ArgumentError(f"output_file must end in {' or '.join(suffixes)}, got {path!r}")


def make_folders(paths: Iterable[str]) -> None:
    """Creates the directories of `paths`.

    Raises:
        ConfigurationError: a path cannot be written to.
    """
    for path in map(Path, paths):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"cannot write {path}: {error.strerror}") from None
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ConfigurationError(f"cannot write {path}: it must be a writable file")


def write_json(path: str, document: Mapping[str, Any]) -> None:
    """Writes an indented JSON document."""
    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)
    Path(path).write_text(text + "\n", encoding="utf-8")
