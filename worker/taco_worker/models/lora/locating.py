"""Finds the LoRA adapter that is merged into a model: a directory, or a hub id."""

from __future__ import annotations

from pathlib import Path

from taco_worker.models.lora.settings import SETTINGS_FILE


def resolve_adapter(name: str, download_dir: Path | None = None) -> Path:
    """The directory of an adapter: the given one, or a download from the hub.

    Raises:
        ValueError: a path without an adapter, or a hub id that does not exist or cannot be reached.
    """
    try:
        path = Path(name).expanduser()
        if (path / SETTINGS_FILE).is_file():
            return path
    except (OSError, RuntimeError) as error:  # a name that is too long, or a user that is unknown
        raise ValueError(f"{name!r:.200} is no path of a LoRA adapter: {error}") from None
    if path.exists() or name.startswith(("/", "./", "../", "~")):
        raise ValueError(f"{name} is no LoRA adapter: it has no {SETTINGS_FILE}")
    # Importing it takes 0.2 s; an adapter on disk does not need it.
    from taco_worker.models.download import download_adapter

    directory = download_adapter(name, download_dir)
    if not (directory / SETTINGS_FILE).is_file():
        raise ValueError(f"{name} on the hub is no LoRA adapter: it has no {SETTINGS_FILE}")
    return directory
