"""`horovodrun` with real processes: ranks find each other, fail together, and leave nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from support.patience import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.process
RUN = [sys.executable, "-m", "taco_train.lightcc.launcher.main"]
CONNECT = """
import os
from taco_train.collective.store import connect
placement, store = connect(timeout=60)
store.set(f"{placement.rank}", os.environ.get("HOROVOD_CYCLE_TIME", "unset"))
others = [store.get(f"{rank}").decode() for rank in range(placement.size)]
names = "local_rank", "local_size", "cross_rank", "cross_size"
print("at", placement.host, *[getattr(placement, name) for name in names], *others, flush=True)
"""
WAIT = """
import os, pathlib, subprocess, sys, threading
folder = pathlib.Path(sys.argv[1])
stray = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
rank = int(os.environ["HOROVOD_RANK"])
(folder / f"{rank}.new").write_text(f"{os.getpid()} {stray.pid}")
(folder / f"{rank}.new").rename(folder / f"{rank}.pids")
threading.Event().wait()
"""
# Runs what would run on another host here, and notes how it was called.
SSH = """#!/bin/sh
echo "$@" >> "$SSH_LOG"
for last; do :; done
exec sh -c "$last"
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "connect.py").write_text(CONNECT)
    (tmp_path / "wait.py").write_text(WAIT)
    return tmp_path / "connect.py"


@pytest.fixture
def ssh_environment(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SSH_LOG": str(tmp_path / "ssh.log")}


def run(
    *arguments: str | Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *map(str, arguments)],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


def test_ranks_of_this_host(script: Path, tmp_path: Path) -> None:
    flags: list[str | Path] = [
        "-np",
        "2",
        "--cycle-time-ms",
        "3.5",
        "--output-filename",
        tmp_path / "out",
    ]
    result = run(*flags, sys.executable, script)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [
        "[0]<stdout>:at localhost 0 2 0 1 3.5 3.5",
        "[1]<stdout>:at localhost 1 2 0 1 3.5 3.5",
    ]
    assert (tmp_path / "out/rank.1/stdout").read_text() == "at localhost 1 2 0 1 3.5 3.5\n"


def test_hosts_by_ssh(script: Path, tmp_path: Path, ssh_environment: dict[str, str]) -> None:
    (tmp_path / "hosts").write_text("# two hosts\nfirst.invalid slots=1\nsecond.invalid slots=2\n")
    flags: list[str | Path] = ["-np", "3", "--hostfile", tmp_path / "hosts", "-p", "2222"]
    result = run(*flags, sys.executable, script, environment=ssh_environment)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [
        "[0]<stdout>:at first.invalid 0 1 0 2 unset unset unset",
        "[1]<stdout>:at second.invalid 0 2 1 2 unset unset unset",
        "[2]<stdout>:at second.invalid 1 2 0 1 unset unset unset",
    ]
    calls = Path(ssh_environment["SSH_LOG"]).read_text().splitlines()
    assert len(calls) == 3
    assert all("-p 2222" in call for call in calls)


class Running:
    """A launcher whose two ranks, and a process that each of them has started, wait."""

    def __init__(self, folder: Path, *flags: str, environment: Mapping[str, str]) -> None:
        self.launcher = subprocess.Popen(
            [*RUN, "-np", "2", *flags, sys.executable, str(folder / "wait.py"), str(folder)],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        files = [folder / f"{rank}.pids" for rank in range(2)]
        wait_until(lambda: all(file.exists() for file in files), "the ranks")
        self.pids = [[int(pid) for pid in file.read_text().split()] for file in files]

    def wait_gone(self) -> None:
        pids = [pid for pair in self.pids for pid in pair]
        wait_until(lambda: not any(map(is_alive, pids)), "the end of every process")


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("flags", [[], ["-H", "a.invalid:1,b.invalid:1"]])
def test_a_killed_rank_ends_the_others(
    script: Path, tmp_path: Path, ssh_environment: dict[str, str], flags: list[str]
) -> None:
    running = Running(tmp_path, *flags, environment=ssh_environment)
    os.kill(running.pids[1][0], signal.SIGKILL)
    _, stderr = running.launcher.communicate(timeout=PATIENCE_SECONDS)
    assert running.launcher.returncode == 137
    host = "b.invalid" if flags else "localhost"
    assert stderr.splitlines() == [
        f"horovodrun: rank 1 on host {host} failed with exit code 137 (SIGKILL); "
        "the other ranks were ended"
    ]
    running.wait_gone()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_launcher(
    script: Path, tmp_path: Path, ssh_environment: dict[str, str], number: signal.Signals
) -> None:
    running = Running(tmp_path, "-H", "localhost:1,b.invalid:1", environment=ssh_environment)
    running.launcher.send_signal(number)
    _, stderr = running.launcher.communicate(timeout=PATIENCE_SECONDS)
    killed = number == signal.SIGKILL
    assert running.launcher.returncode == (-number if killed else 128 + number)
    assert stderr.splitlines() == ([] if killed else [f"horovodrun: ended by {number.name}"])
    running.wait_gone()


def test_a_host_that_does_not_start_its_ranks(tmp_path: Path, script: Path) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\nexec sleep 1000\n")
    (tmp_path / "ssh").chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    flags = ["-np", "1", "-H", "a.invalid", "--start-timeout", "1"]
    result = run(*flags, sys.executable, script, environment=path)
    assert result.returncode == 1
    assert result.stderr.startswith(
        "horovodrun: ranks not started within 1 s: 0 on host a.invalid; check that"
    )
    (tmp_path / "ssh").write_text("#!/bin/sh\nexit 255\n")
    result = run(*flags, sys.executable, script, environment=path)
    assert result.returncode == 255
    assert result.stderr == (
        "horovodrun: rank 0 could not be started: ssh cannot reach host a.invalid\n"
    )


def test_a_command_that_does_not_exist() -> None:
    result = run("-np", "1", "no-such-program")
    assert result.returncode == 127
    first, last = result.stderr.splitlines()
    assert first.startswith("[0]<stderr>:cannot start no-such-program: ")
    assert last == "horovodrun: rank 0 on host localhost failed with exit code 127"


def test_check_build_and_version() -> None:
    shown = run("--check-build")
    assert shown.returncode == 0
    assert "[X] PyTorch" in shown.stdout
    assert "[X] Gloo" in shown.stdout
    assert run("--version").returncode == 0
