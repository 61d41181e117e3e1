"""Python source to complete: the standard library's own pure-Python modules."""

import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from recipe.objects import public_modules

SKIPPED_MODULES = ("encodings",)  # character tables
HELD_OUT_MODULES = ("heapq", "shlex", "textwrap", "bisect", "queue", "fnmatch", "sched", "calendar")


@dataclass(frozen=True)
class SourceFiles:
    train: list[str]
    held_out: list[str]


def load_source() -> SourceFiles:
    """The text of the library's public modules and packages, tests and tables left out."""
    files = SourceFiles([], [])
    for module in public_modules():
        if "." in module or module in SKIPPED_MODULES:
            continue
        target = files.held_out if module in HELD_OUT_MODULES else files.train
        target.extend(path.read_text(encoding="utf-8") for path in _files_of(module))
    return files


def _files_of(module: str) -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    if module not in sys.stdlib_module_names:
        raise ValueError(f"{module} is not a module of the standard library")
    if (root / f"{module}.py").is_file():
        return [root / f"{module}.py"]
    return sorted(
        path
        for path in (root / module).glob("*.py")
        if not path.name.startswith(("test", "__main__")) and path.stat().st_size < 150_000
    )
