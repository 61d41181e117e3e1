"""Recipes are short, and each registered one is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from taco_worker.models import recipes
from taco_worker.models.registry import find_recipe, supported_architectures

MAX_LINES = 80
FILES = sorted(Path(recipes.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recipe_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("architecture", supported_architectures())
def test_registered_recipe_is_there(architecture: str) -> None:
    assert find_recipe([architecture])[0] == architecture
