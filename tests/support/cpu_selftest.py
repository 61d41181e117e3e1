"""Builds the self-test of the CPU kernels: `python -m support.cpu_selftest PROGRAM`."""

import subprocess
import sys
from pathlib import Path

from support.cpu_kernels import EMULATED_LIBRARY
from taco_kernels import build

_SOURCES = Path(__file__).parents[1] / "kernels" / "cpu" / "selftest"
_FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror")


def build_selftest(program: Path, *, emulated: bool = False) -> None:
    """Compiles the checks and links them to the library that users have, built anew if need be.

    Args:
        emulated: link them to the library of the emulated instruction sets instead.
    """
    built = build.build(EMULATED_LIBRARY, build.EMULATED_SETS) if emulated else build.build()
    assert not built.skipped_sets, built.skipped_sets
    sources = map(str, sorted(_SOURCES.glob("*.cpp")))
    flags = [*_FLAGS, *build.include_flags()]
    command = [*build.find_compiler(), *flags, *sources, str(built.library)]
    subprocess.run([*command, "-o", str(program)], check=True)


if __name__ == "__main__":
    build_selftest(Path(sys.argv[1]))
