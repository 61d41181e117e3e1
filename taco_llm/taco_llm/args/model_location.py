"""Resolves the MODEL argument to a directory or a Hugging Face hub id."""

import re
from pathlib import Path

from taco_demo.locate import find_model
from taco_proto.errors import ConfigurationError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")

_NEEDED_FILES = {
    "model": ("config.json", "params.json"),
    "tokenizer": (
        *("tokenizer.json", "tokenizer_config.json", "vocab.json"),
        *("tokenizer.model", "tekken.json"),
    ),
}


def locate_model(name: str, what: str = "model") -> str:
    """The directory of the model `name`, or `name` itself if it can be a hub id.

    A directory counts as a model only if it contains config.json or params.json. An unrelated
    directory with the name of a bundled or hub model therefore does not hide that model.

    Raises:
        ConfigurationError: `name` is neither a model's directory, nor a bundled model, nor a hub
            id.
    """
    directory = Path(name).expanduser()
    needed = _NEEDED_FILES[what]
    if any((directory / file).is_file() for file in needed):
        return str(directory.resolve())
    bundled = find_model(name)
    if bundled is not None:
        return str(bundled)
    if directory.is_dir():
        raise ConfigurationError(f"{what} path {name!r} contains no {needed[0]}")
    if directory.exists():
        raise ConfigurationError(f"{what} path {name!r} is a file; give the directory of the model")
    if not _HUB_ID.fullmatch(name):
        raise ConfigurationError(
            f"{what} path {name!r} does not exist; give a directory, a hub id or a bundled model"
        )
    return name
