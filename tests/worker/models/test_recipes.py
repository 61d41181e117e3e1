"""Recipes are short, each registered one is there, and InternLM's reads its own fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.architectures.variants import VARIANTS
from taco_worker.models import recipes
from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.recipes import internlm, llama
from taco_worker.models.registry import find_recipe, supported_architectures

MAX_LINES = 80
FILES = sorted(Path(recipes.__file__).parent.glob("*.py"))


def _dynamic(factor: float) -> dict[str, Any]:
    return {"type": "dynamic", "factor": factor}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recipe_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("architecture", supported_architectures())
def test_registered_recipe_is_there(architecture: str) -> None:
    assert find_recipe([architecture])[0] == architecture


@pytest.mark.parametrize(
    ("rotary", "rope"),
    [
        ({"base": 700, "type": "origin"}, {"rope_theta": 700}),
        ({"base": 700, "type": "dynamic"}, {"rope_theta": 700, "rope_scaling": _dynamic(1.0)}),
        ({"type": "dynamic", "scaling_factor": 2.0}, {"rope_scaling": _dynamic(2.0)}),
        ({"base": 700, "type": "dynamic"}, {"rope_parameters": {"rope_theta": 900}}),
    ],
)
def test_internlm_has_other_names_for_rope_settings(
    rotary: dict[str, Any], rope: dict[str, Any]
) -> None:
    """Settings of `rope_parameters`, which command-line flags write, replace both."""
    given = {"rotary": rotary, **{k: v for k, v in rope.items() if k == "rope_parameters"}}
    actual, expected = (
        recipe(ConfigFields({**VARIANTS["xverse-like"].config, **fields}), "")
        for recipe, fields in ((internlm.plan, given), (llama.plan, rope))
    )
    assert actual.rope_tables == expected.rope_tables
    assert actual.max_position_embeddings == expected.max_position_embeddings
