"""Locates the models that ship with TACO."""

from importlib.resources import files
from pathlib import Path

BUNDLED_MODELS = ("demo", "demo-draft")
BUNDLED_HEADS = ("demo-medusa", "demo-eagle")  # which draft for the demo model


def find_model(name: str) -> Path | None:
    """The directory of the bundled model or heads called `name`; None for any other name.

    A directory counts as a model only if it contains config.json.
    """
    if name not in BUNDLED_MODELS + BUNDLED_HEADS:
        return None
    directory = files("taco_demo") / "models" / name
    # Weights are memory-mapped, which needs a real directory, not a member of a zip archive.
    if isinstance(directory, Path) and (directory / "config.json").is_file():
        return directory
    return None
