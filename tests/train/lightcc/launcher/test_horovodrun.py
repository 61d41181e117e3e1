"""`horovodrun` with real processes: ranks find each other, fail together, and leave nothing."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import psutil
import pytest

from support.forked_program import ForkedProgram
from support.patience import PATIENCE_SECONDS, wait_until
from taco_train.lightcc.launcher.main import main as horovodrun

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
# As CONNECT, without torch, whose import takes seconds.
PLACE = """
import os
from taco_train.cluster.launch import detect
place = detect(os.environ)
names = "local_rank", "local_size", "cross_rank", "cross_size"
values = [getattr(place, name) for name in names]
print("at", place.group, *values, os.environ["HOROVOD_CYCLE_TIME"], flush=True)
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
    (tmp_path / "place.py").write_text(PLACE)
    (tmp_path / "wait.py").write_text(WAIT)
    return tmp_path / "connect.py"


@pytest.fixture
def ssh_environment(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(SSH)
    (folder / "ssh").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SSH_LOG": str(tmp_path / "ssh.log")}


def test_ranks_of_this_host(script: Path, tmp_path: Path) -> None:
    flags: list[str | Path] = [
        "-np",
        "2",
        "--cycle-time-ms",
        "3.5",
        "--gloo",
        "--output-filename",
        tmp_path / "out",
    ]
    command = [sys.executable, str(tmp_path / "place.py")]
    launcher = ForkedProgram(horovodrun, *flags, *command, folder=tmp_path)
    assert launcher.wait() == 0, launcher.stderr
    assert launcher.stderr.splitlines() == [
        "horovodrun: --gloo has no effect: ranks always negotiate over TCP"
    ]
    assert sorted(launcher.stdout.splitlines()) == [
        "[0]<stdout>:at localhost 0 2 0 1 3.5",
        "[1]<stdout>:at localhost 1 2 0 1 3.5",
    ]
    assert (tmp_path / "out/rank.1/stdout").read_text() == "at localhost 1 2 0 1 3.5\n"


def test_hosts_by_ssh(script: Path, tmp_path: Path, ssh_environment: dict[str, str]) -> None:
    (tmp_path / "hosts").write_text("# two hosts\nfirst.invalid slots=1\nsecond.invalid slots=2\n")
    flags: list[str | Path] = ["-np", "3", "--hostfile", tmp_path / "hosts", "-p", "2222"]
    command = [sys.executable, str(script)]
    launcher = ForkedProgram(
        horovodrun, *flags, *command, folder=tmp_path, environment=ssh_environment
    )
    assert launcher.wait() == 0, launcher.stderr
    assert sorted(launcher.stdout.splitlines()) == [
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
        command = ["-np", "2", *flags, sys.executable, str(folder / "wait.py"), str(folder)]
        self.launcher = ForkedProgram(horovodrun, *command, folder=folder, environment=environment)
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
    assert running.launcher.wait() == 137
    host = "b.invalid" if flags else "localhost"
    assert running.launcher.stderr.splitlines() == [
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
    killed = number == signal.SIGKILL
    assert running.launcher.wait() == (-number if killed else 128 + number)
    lines = running.launcher.stderr.splitlines()
    assert lines == ([] if killed else [f"horovodrun: ended by {number.name}"])
    running.wait_gone()


def test_a_host_that_does_not_start_its_ranks(tmp_path: Path, script: Path) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\nexec sleep 1000\n")
    (tmp_path / "ssh").chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    flags = ["-np", "1", "-H", "a.invalid", "--start-timeout", "1", sys.executable, str(script)]
    launcher = ForkedProgram(horovodrun, *flags, folder=tmp_path, environment=path)
    assert launcher.wait() == 1
    assert launcher.stderr.startswith(
        "horovodrun: ranks not started within 1 s: 0 on host a.invalid; check that"
    )
    (tmp_path / "ssh").write_text("#!/bin/sh\nexit 255\n")
    launcher = ForkedProgram(horovodrun, *flags, folder=tmp_path, environment=path)
    assert launcher.wait() == 255
    assert launcher.stderr == (
        "horovodrun: rank 0 could not be started: ssh cannot reach host a.invalid\n"
    )


def test_without_ssh(tmp_path: Path) -> None:
    flags = ["-np", "1", "-H", "a.invalid", "true"]
    path = {"PATH": str(tmp_path)}
    launcher = ForkedProgram(horovodrun, *flags, folder=tmp_path, environment=path)
    assert launcher.wait() == 1
    assert launcher.stderr == (
        "horovodrun: rank 0 on host a.invalid could not be started: ssh is not installed\n"
    )


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    launcher = ForkedProgram(horovodrun, "-np", "1", "no-such-program", folder=tmp_path)
    assert launcher.wait() == 127
    first, last = launcher.stderr.splitlines()
    assert first.startswith("[0]<stderr>:cannot start no-such-program: ")
    assert last == "horovodrun: rank 0 on host localhost failed with exit code 127"


def test_check_build_and_version() -> None:
    cases: dict[str, list[str]] = {"--check-build": ["[X] PyTorch", "[X] Gloo"], "--version": []}
    for flag, lines in cases.items():
        shown = subprocess.run([*RUN, flag], capture_output=True, text=True, check=True)
        assert all(line in shown.stdout for line in lines)


def test_nobody_reads_the_output() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        run = subprocess.run([*RUN, "--check-build"], stdout=output, stderr=subprocess.PIPE)
    assert (run.returncode, run.stderr) == (1, b"")


# Code that torch imports may do as much.
SWALLOWS = """
import threading
try:
    print("importing", flush=True)
    threading.Event().wait(60)
except KeyboardInterrupt:
    raise SystemExit("swallowed")
"""


def test_an_interrupt_while_torch_is_imported_ends_the_launcher(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(SWALLOWS)
    with subprocess.Popen(
        [*RUN, "-np", "2", "true"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
    ) as launcher:
        assert launcher.stdout
        assert launcher.stdout.readline() == b"importing\n"
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(PATIENCE_SECONDS) == -signal.SIGINT


def test_the_job_ends_with_the_reader_of_its_output() -> None:
    with subprocess.Popen(
        [*RUN, "-np", "2", "yes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as launcher:
        assert launcher.stdout
        assert launcher.stderr
        assert launcher.stdout.readline().endswith("<stdout>:y\n")
        launcher.stdout.close()  # as `| head -1` does
        assert launcher.wait(PATIENCE_SECONDS) == 128 + signal.SIGPIPE
        assert launcher.stderr.read() == "horovodrun: ended by SIGPIPE\n"


def test_ranks_continue_where_their_output_has_no_space(tmp_path: Path) -> None:
    """A rank that waits to write to a pipe that is full does not train."""
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "stdout").symlink_to("/dev/full")
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [*RUN, "-np", "1", "--output-filename", str(tmp_path), "seq", "100000"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
    assert result.returncode == 0
    assert result.stderr.splitlines() == [
        "horovodrun: the copy of rank 0's stdout ends: No space left on device",
        "horovodrun: stdout ends: No space left on device",
    ]


def test_a_copy_that_waits_does_not_hold_up_other_ranks(tmp_path: Path) -> None:
    copy, go = tmp_path / "rank.0" / "stdout", tmp_path / "go"
    copy.parent.mkdir()
    os.mkfifo(copy)
    os.mkfifo(go)
    script = 'if [ $HOROVOD_RANK = 0 ]; then printf "%100000d" 7; else cat "$0"; fi'
    flags: list[str | Path] = ["-np", "2", "--output-filename", tmp_path]
    with os.fdopen(os.open(copy, os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        size = fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
        launcher = ForkedProgram(horovodrun, *flags, "sh", "-c", script, go, folder=tmp_path)
        wait_until(lambda: num_unread(reader) == size, "a copy that is full")
        go.write_text("not held up\n")
        wait_until(lambda: "[1]<stdout>:not held up\n" in launcher.stdout, "rank 1's line")
        os.set_blocking(reader.fileno(), True)
        assert reader.read() == b"%100000d" % 7
    assert launcher.wait() == 0, launcher.stderr


def num_unread(pipe: IO[bytes]) -> int:
    """Bytes that wait in a pipe."""
    number = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, number)
    return number[0]


def test_a_folder_for_output_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "rank.1").touch()
    result = subprocess.run(
        [*RUN, "-np", "2", "--output-filename", str(tmp_path), "sleep", "1000"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert result.returncode == 1
    assert result.stderr == (
        f"horovodrun: output cannot be copied to {tmp_path}/rank.1: File exists\n"
    )
