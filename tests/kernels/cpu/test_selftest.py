"""The self-test, which also runs where Python does not: on machines and emulators of instruction
sets that this one lacks (kernels/emulate)."""

import subprocess
from pathlib import Path

import pytest

from support.cpu_kernels import EMULATED, NATIVE
from support.cpu_selftest import compile_checks, link_selftest

pytestmark = pytest.mark.slow


def test_every_check_passes_with_every_set(tmp_path: Path) -> None:
    objects = compile_checks(tmp_path)
    for sets in filter(None, (NATIVE, EMULATED)):
        program = tmp_path / sets[0]
        link_selftest(objects, program, emulated=sets is EMULATED)
        done = subprocess.run([program], capture_output=True, text=True, timeout=300)
        lines = done.stdout.splitlines()
        assert [line for line in lines if line.startswith("FAILED")] == []
        assert done.returncode == 0, done.stderr
        assert lines[-1].endswith(" passed, 0 failed")
        tested = {line.split()[1].rstrip(":") for line in lines if line.startswith("ok")}
        assert tested == set(sets)
