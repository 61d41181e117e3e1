"""The emulated sets compile, also on machines that have them, where no other test uses them."""

import subprocess
from pathlib import Path

import pytest

from taco_kernels import build
from taco_kernels.build import InstructionSet

SOURCES = [path for folder in build.SOURCES for path in sorted(folder.rglob("isa_*.cpp"))]


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=[path.stem for path in SOURCES])
@pytest.mark.parametrize("isa", build.EMULATED_SETS, ids=lambda isa: isa.name)
def test_a_unit_has_no_errors(isa: InstructionSet, source: Path) -> None:
    flags = ["-std=c++17", "-fsyntax-only", *build.include_flags(), *isa.flags]
    command = [*build.find_compiler(), *flags, f"-DTACO_ISA={isa.name}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
