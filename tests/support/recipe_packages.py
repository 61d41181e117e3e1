"""Installs small packages that declare recipes as entry points, as their users would."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from taco_llm.recipes import ENTRY_POINT_GROUP


def install_recipes(
    folder: Path,
    name: str,
    recipes: Mapping[str, str],
    modules: Mapping[str, str],
) -> Path:
    """Build and install a package with pip; returns the directory for sys.path.

    Args:
        folder: an empty or new directory.
        recipes: architectures, and "module:function" of each.
        modules: names and contents of its Python modules.
    """
    source, target = folder / "source", folder / "installed"
    source.mkdir(parents=True)
    points = "".join(f'{name} = "{target}"\n' for name, target in recipes.items())
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        f'[project]\nname = "{name}"\nversion = "1.2"\n'
        f'[project.entry-points."{ENTRY_POINT_GROUP}"]\n{points}'
        f"[tool.setuptools]\npy-modules = {sorted(modules)}\n"
    )
    for module, text in modules.items():
        (source / f"{module}.py").write_text(text)
    return pip_install(source, target)


def pip_install(source: Path, target: Path) -> Path:
    """Install the package in `source` into the directory `target`, and return `target`."""
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target)]
    subprocess.run([*command, str(source)], check=True)
    return target
