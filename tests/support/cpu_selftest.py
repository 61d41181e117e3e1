"""Builds the self-test of the CPU kernels: `python -m support.cpu_selftest PROGRAM`."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from support.cpu_kernels import built_library
from taco_kernels import build

_SOURCES = Path(__file__).parents[1] / "kernels" / "cpu" / "selftest"
_FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror")


def compile_checks(folder: Path) -> list[Path]:
    """Compiles the checks into `folder` and returns the object files."""
    sources = sorted(_SOURCES.glob("*.cpp"))
    command = [*build.find_compiler(), *_FLAGS, *build.include_flags(), "-c"]
    subprocess.run([*command, *map(str, sources)], check=True, cwd=folder)
    return [folder / f"{source.stem}.o" for source in sources]


def link_selftest(objects: Sequence[Path], program: Path, *, emulated: bool = False) -> None:
    """Links the checks to the library that users have, built anew if need be.

    Args:
        emulated: link them to the library of the emulated instruction sets instead.
    """
    library = built_library(emulated=emulated)
    command = [*build.find_compiler(), *map(str, objects), str(library), "-o", str(program)]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        link_selftest(compile_checks(Path(directory)), Path(sys.argv[1]))
