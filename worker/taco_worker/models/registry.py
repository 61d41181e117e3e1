"""The supported architectures by name; a recipe is imported on first use."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from taco_worker.models.recipe import Recipe

_RECIPE_MODULES = {
    "GPT2LMHeadModel": "gpt2",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "OPTForCausalLM": "opt",
    "Qwen2ForCausalLM": "qwen2",
}


def supported_architectures() -> list[str]:
    return sorted(_RECIPE_MODULES)


def find_recipe(architectures: Sequence[str]) -> tuple[str, Recipe]:
    """Find the first of `architectures` that has a recipe.

    Raises:
        ValueError: none has one; the message lists the supported architectures.
    """
    for architecture in architectures:
        if module_name := _RECIPE_MODULES.get(architecture):
            module = import_module(f"taco_worker.models.recipes.{module_name}")
            recipe: Recipe = module.RECIPE
            return architecture, recipe
    named = ", ".join(architectures) or "(config.json names none)"
    raise ValueError(
        f"architecture {named} is not supported; supported are "
        f"{', '.join(supported_architectures())}"
    )
