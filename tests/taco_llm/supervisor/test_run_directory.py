"""The run directory is removed with its command, also after SIGKILL."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from taco_llm.supervisor.run_directory import run_directory

pytestmark = pytest.mark.process

_HOLD = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from taco_llm.supervisor.run_directory import run_directory
with run_directory() as path:
    print(path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def hold(temp: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(temp)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_directory_is_removed_with_its_context(temp: Path) -> None:
    with run_directory() as path:
        assert path.parent == temp
        assert path.stat().st_mode & 0o777 == 0o700
    assert not list(temp.iterdir())


def test_the_next_command_removes_a_stale_directory(temp: Path) -> None:
    killed, stale = hold(temp)
    running, kept = hold(temp)
    with killed, running:
        assert stale.is_dir()
        killed.kill()
        killed.wait()
        (temp / "taco-serve-being-made").mkdir()  # has no lock yet
        (temp / "other").mkdir()
        assert stale.is_dir()
        with run_directory() as path:
            names = {entry.name for entry in temp.iterdir()}
            assert names == {path.name, kept.name, "taco-serve-being-made", "other"}
        assert running.stdin is not None
        running.stdin.close()
        assert running.wait() == 0
    assert not kept.exists()
