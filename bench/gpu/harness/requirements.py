"""Python packages that a run needs and this interpreter lacks."""

from __future__ import annotations

import shlex
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
# Packages of the extras gateway and gpu that `taco_llm.LLM` and the kernels need, and pytest's.
OTHERS = ("tokenizers", "transformers", "jinja2", "triton", "pytest", "hypothesis")
# Platform tags of the borrowed GPU machine.
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def missing() -> list[Requirement]:
    """Returns the missing packages in the order of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    # Without the admin listener's packages: no service runs there.
    worker = [line for line in extras["worker"] if Requirement(line).name != project["name"]]
    lines = [*project["dependencies"], *worker]
    lines += [
        line
        for extra in ("gateway", "gpu", "dev")
        for line in extras[extra]
        if Requirement(line).name in OTHERS
    ]
    return [needed for needed in map(Requirement, lines) if not _is_installed(needed)]


def advice(needed: Iterable[Requirement]) -> str:
    """Returns one line: the missing packages, and the command that downloads them."""
    pins = [shlex.quote(_pinned(each)) for each in needed]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    platforms = " ".join(f"--platform {platform}" for platform in PLATFORMS)
    return (
        f"missing: {' '.join(pins)}; fetch with: python3 -m pip download --no-deps "
        f"--only-binary=:all: --python-version {version} --implementation cp {platforms} -d .whl "
        f"{' '.join(pins)}"
    )


def _is_installed(needed: Requirement) -> bool:
    try:
        return needed.specifier.contains(metadata.version(needed.name), prereleases=True)
    except metadata.PackageNotFoundError:
        return False


def _pinned(needed: Requirement) -> str:
    """Returns the version in constraints.txt, which the tests ran with."""
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        if name.lower() == needed.name.lower():
            return f"{needed.name}=={version}"
    return str(needed)
