"""Recipes that TACO does not ship: registered by a program, or declared by installed packages.

A package declares its recipes as entry points, so that their names are known before its code runs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.model_plan import ModelPlan

# Makes the plan of one architecture from its config.json.
Recipe = Callable[[ConfigFields, str], ModelPlan]

ENTRY_POINT_GROUP = "taco_llm.model_recipes"
_TARGET = re.compile(r"[\w.]+:[\w.]+")

logger = logging.getLogger("taco.worker")


@dataclass(frozen=True, slots=True)
class ExternalRecipe:
    """A recipe whose errors name where it comes from.

    Attributes:
        recipe: the function, or "module:function", which is imported on the first call.
        package: name and version of the package that declares it; None: a program registered it.
    """

    recipe: Recipe | str
    package: str | None = None

    def __call__(self, fields: ConfigFields, architecture: str) -> ModelPlan:
        """The plan.

        Raises:
            ValueError: the recipe cannot be imported, fails, rejects the config or returns no plan.
        """
        recipe = self._load(architecture) if isinstance(self.recipe, str) else self.recipe
        try:
            plan = recipe(fields, architecture)
        except KeyError as error:
            raise ValueError(f"config.json has no {error}, which {self} reads") from error
        except ValueError as error:
            raise ValueError(f"{error} ({self})") from error
        except Exception as error:
            raise ValueError(f"{self} fails for {architecture}: {_one_line(error)}") from error
        if not isinstance(plan, ModelPlan):
            raise ValueError(f"{self} returned {type(plan).__name__} instead of a ModelPlan")
        return plan

    def __str__(self) -> str:
        name = self.recipe
        if not isinstance(name, str):
            name = f"{name.__module__}:{getattr(name, '__qualname__', name)}"
        return f"recipe {name}" + (f" of the package {self.package}" if self.package else "")

    def _load(self, architecture: str) -> Recipe:
        module, _, path = str(self.recipe).partition(":")
        try:
            check_target(str(self.recipe))
            found = import_module(module)
            for name in path.split("."):
                found = getattr(found, name)
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"{self} for {architecture} cannot be loaded: {_one_line(error)}"
            ) from error
        if not callable(found):
            raise ValueError(f"{self} for {architecture} is not a function")
        return found


def check_target(target: str) -> None:
    """Raises ValueError for text that is not "module:function"."""
    if not _TARGET.fullmatch(target):
        raise ValueError(f"a recipe must be named as module:function, not {target!r}")


def installed_recipes() -> dict[str, list[ExternalRecipe]]:
    """The recipes that installed packages declare, by architecture, without importing them.

    A package whose metadata cannot be read is skipped with a warning.
    """
    # Slow to import, and models with a recipe of TACO do not need it.
    from importlib.metadata import distributions

    recipes: dict[str, list[ExternalRecipe]] = {}
    packages: set[str] = set()
    for distribution in distributions():
        # The cheap test first: most packages declare no recipes.
        if f"[{ENTRY_POINT_GROUP}]" not in (distribution.read_text("entry_points.txt") or ""):
            continue
        name = distribution.name
        if name in packages:  # found again, farther down on sys.path
            continue
        packages.add(name)
        package = f"{name} {distribution.version}"
        try:
            entry_points = distribution.entry_points.select(group=ENTRY_POINT_GROUP)
        except Exception as error:
            logger.warning("cannot read the recipes of %s: %s", package, _one_line(error))
            continue
        for point in entry_points:
            recipes.setdefault(point.name, []).append(ExternalRecipe(point.value, package))
    return recipes


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
