"""From the MODEL that a user names to a directory on this machine."""

from __future__ import annotations

from pathlib import Path


def resolve_model(
    model: str,
    *,
    revision: str | None = None,
    download_dir: Path | None = None,
    ignore_patterns: tuple[str, ...] = (),
) -> Path:
    """A directory that holds `model`: itself, or a download of that name from the hub.

    Weights come as safetensors; as .bin only where the hub has nothing else.

    Args:
        model: a path or a hub id ("owner/name").
        revision: branch, tag or commit on the hub.
        download_dir: where downloads are kept; by default Hugging Face's own cache.
        ignore_patterns: files of the hub that are not downloaded, beside those that never are.

    Raises:
        ValueError: a directory without config.json, a path that does not exist, or a hub id that
            does not exist or cannot be reached.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"{model} is no model: it holds no config.json")
        return path
    if model.startswith(("/", "./", "../", "~")) or path.exists():
        raise ValueError(f"{model} is not a model directory")
    # A fifth of a second to import, which a model on disk need not wait for.
    from taco_worker.models.download import download_model

    return download_model(model, revision, download_dir, ignore_patterns)
