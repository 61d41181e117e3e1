"""Resolves the MODEL argument to a directory or a Hugging Face hub id.

A model in GGUF becomes a directory in a cache, so that only this module knows of it.
"""

import difflib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from taco_demo.locate import BUNDLED_MODELS, find_model
from taco_proto.errors import ConfigurationError
from taco_worker.quant.gguf.checkpoint import is_gguf, only_model
from taco_worker.quant.gguf.model_directory import model_directory

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HUB_GGUF = re.compile(rf"(?P<repository>{_HUB_ID.pattern}):(?P<kind>[A-Za-z0-9_]+)")

_NEEDED_FILES = {
    "model": ("config.json", "params.json"),
    "tokenizer": (
        *("tokenizer.json", "tokenizer_config.json", "vocab.json"),
        *("tokenizer.model", "tekken.json"),
    ),
}


def locate_model(
    name: str,
    what: str = "model",
    *,
    revision: str | None = None,
    download_dir: str | None = None,
    load_format: str = "auto",
) -> str:
    """The directory of the model `name`, or `name` itself if it can be a hub id.

    A .gguf file, a directory that has nothing else, and `repository:QUANTIZATION` become the
    directory that is made of the files; those of a repository are downloaded.

    A directory counts as a model only if it contains config.json or params.json. An unrelated
    directory with the name of a bundled or hub model therefore does not hide that model.

    Args:
        what: "model" or "tokenizer".
        revision, download_dir: as of `EngineArgs`.
        load_format: "gguf": a directory's .gguf files are read even if it has others.

    Raises:
        ConfigurationError: `name` is neither a model's directory or file, nor a bundled model, nor
            a hub id; or a .gguf file is not valid, or not supported.
    """
    try:
        directory = Path(name).expanduser()
        directory.exists()
    except (OSError, RuntimeError) as error:  # it is too long, or names an unknown user
        raise ConfigurationError(f"{what} path {name!r:.200} is not valid: {error}") from None
    needed = _NEEDED_FILES[what]
    file = _gguf_file(directory, needed, load_format)
    if file is None and (match := _HUB_GGUF.fullmatch(name)) and not directory.exists():
        repository, kind = match["repository"], match["kind"]
        if is_model(Path(repository), what):
            raise ConfigurationError(
                f"{what} {name!r}: {repository} is on this machine, and only a repository of the "
                f"hub takes a kind: leave out ':{kind}', or give the path of a .gguf file"
            )
        file = _download(repository, kind, revision, download_dir)
    if file is not None:
        try:
            return str(model_directory(file))
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
    if any((directory / file).is_file() for file in needed):
        return str(directory.resolve())
    bundled = find_model(name)
    if bundled is not None:
        return str(bundled)
    if what == "model" and (directory / "adapter_config.json").is_file():
        raise ConfigurationError(
            f"model path {name!r} is a LoRA adapter, not a model: give its base model, and the "
            "adapter with --merge-lora (merge_lora) or --lora-modules (lora_modules)"
        )
    if directory.is_dir():
        raise ConfigurationError(f"{what} path {name!r} contains no {needed[0]}")
    if directory.exists():
        raise ConfigurationError(f"{what} path {name!r} is a file; give the directory of the model")
    if is_gguf(directory):
        raise ConfigurationError(
            f"{what} file {name!r} does not exist; give the path of a .gguf file, or files of the "
            "hub as REPOSITORY:KIND, such as org/model-GGUF:Q4_K_M"
        )
    if not _HUB_ID.fullmatch(name):
        raise ConfigurationError(
            f"{what} path {name!r} does not exist; give a directory, a hub id or a bundled model"
        )
    return name


def locate_adapter(name: str) -> str:
    """The absolute path of an adapter's directory, or `name` itself if it can be a hub id."""
    try:
        path = Path(name).expanduser()
        return str(path.resolve()) if path.exists() else name
    except (OSError, RuntimeError):  # the worker says what is wrong
        return name


@contextmanager
def suggesting(name: str, known: Sequence[str] = BUNDLED_MODELS) -> Iterator[None]:
    """Adds the nearest known name to a ConfigurationError about a model that cannot be found.

    Paths, and hub ids with an owner, get no suggestion.

    Args:
        name: of the model, as the user gave it.
        known: the names that may have been meant.
    """
    try:
        yield
    except ConfigurationError as error:
        close = difflib.get_close_matches(name, known, n=1)
        if not close or name in known or "/" in name or Path(name).exists():
            raise
        raise ConfigurationError(f"{error}; did you mean {close[0]}?") from None


def is_model(path: Path, what: str = "model") -> bool:
    """Whether a path is a file, or a directory with a model (or tokenizer) of any kind."""
    has_needed = any((path / file).is_file() for file in _NEEDED_FILES[what])
    return path.is_file() or has_needed or next(path.glob("*.gguf"), None) is not None


def _gguf_file(path: Path, needed: tuple[str, ...], load_format: str) -> Path | None:
    """The file of a model in GGUF at `path`; None: there is another kind of model, or nothing."""
    if is_gguf(path) and path.is_file():
        return path
    has_others = any((path / file).is_file() for file in needed)
    if not path.is_dir() or (has_others and load_format != "gguf"):
        return None
    try:
        return only_model(path)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def _download(repository: str, kind: str, revision: str | None, download_dir: str | None) -> Path:
    from taco_worker.models.gguf_download import download_gguf  # importing it takes 0.2 s

    folder = None if download_dir is None else Path(download_dir)
    try:
        return download_gguf(repository, kind, revision, folder)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
