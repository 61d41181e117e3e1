"""Resolves `--model`: a directory, or a Hugging Face hub id that is downloaded."""

from __future__ import annotations

from pathlib import Path

from taco_worker.models.config_reading import config_file


def resolve_model(
    model: str,
    *,
    revision: str | None = None,
    download_dir: Path | None = None,
    ignore_patterns: tuple[str, ...] = (),
    is_mistral: bool = False,
) -> Path:
    """The directory of `model`: the given directory, or a download from the hub.

    Weights are downloaded as safetensors, or else as .bin, or else as consolidated safetensors.

    Args:
        model: a path or a hub id ("owner/name").
        revision: branch, tag or commit on the hub.
        download_dir: the cache directory for downloads; by default Hugging Face's own.
        ignore_patterns: further files of the hub that are not downloaded.
        is_mistral: the consolidated weights of Mistral's format are downloaded.

    Raises:
        ValueError: a directory without config.json or params.json, a path that does not exist, or
            a hub id that does not exist or cannot be reached.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if not config_file(path).is_file():
            raise ValueError(f"{model} is not a model: it has no config.json")
        return path
    if model.startswith(("/", "./", "../", "~")) or path.exists():
        raise ValueError(f"{model} is not a model directory")
    # Importing it takes 0.2 s; a model on disk does not need it.
    from taco_worker.models.download import download_model

    return download_model(model, revision, download_dir, ignore_patterns, is_mistral=is_mistral)
