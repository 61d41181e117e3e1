"""The command `taco_train`: what it prints, returns and reports."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.process


def taco_train(
    *arguments: str | Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "taco_train.cli", *map(str, arguments)],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


def test_emulate_prefixes_lines_and_reports(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    result = taco_train(
        *("emulate", "--hosts", "2", "--ranks-per-host", "2", "--rate", "100mbit"),
        *("--report", report, "--", "sh", "-c", "echo $RANK at $TACO_TRAIN_HOST; echo oh >&2"),
    )
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [
        "[0] 0 at host0",
        "[1] 1 at host0",
        "[2] 2 at host1",
        "[3] 3 at host1",
    ]
    lines = result.stderr.splitlines()
    assert sorted(lines[:4]) == ["[0] oh", "[1] oh", "[2] oh", "[3] oh"]
    assert lines[4] == "host0: sent 0 bytes in 0 packets, received 0 bytes in 0 packets"
    written = json.loads(report.read_text())
    assert written["exit_codes"] == [0, 0, 0, 0]
    assert [host["host"] for host in written["hosts"]] == ["host0", "host1"]


def test_emulate_returns_the_code_of_the_rank_that_failed() -> None:
    script = '[ "$RANK" = 1 ] && exit 7; exec sleep 1000'
    result = taco_train("emulate", "--", "sh", "-c", script)
    assert result.returncode == 7
    assert "error: rank 1 on host1 ended with exit code 7" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_emulate_and_its_ranks(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "taco_train.cli", "emulate", "--", "sh", "-c"]
    with subprocess.Popen(
        [*command, "echo started; exec sleep 1000"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert {process.stdout.readline(), process.stdout.readline()} == {
            b"[0] started\n",
            b"[1] started\n",
        }
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) == 4
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == 128 + number
    psutil.wait_procs(family, PATIENCE_SECONDS)
    assert not any(child.is_running() for child in family)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--rate", "200", "--", "true"], 2, "--rate: '200' is not a rate such as 200mbit"),
        (["--hosts", "300", "--", "true"], 1, "error: 300 hosts: 1 to 200 can be emulated"),
        (["--ranks-per-host", "0", "--", "true"], 1, "--ranks-per-host is 0; it must be at least"),
        (["--report", "/proc/none/x", "--", "true"], 1, "--report /proc/none/x cannot be written"),
        (["--hosts", "2", "--"], 1, "error: there is no command: taco_train emulate --hosts 2 --"),
        (["--host-number", "2", "--", "true"], 2, "unrecognized arguments: --host-number"),
        (["--", "no-such-program"], 1, "no-such-program cannot be started"),
    ],
)
def test_bad_arguments_give_one_error(arguments: list[str], code: int, message: str) -> None:
    result = taco_train("emulate", *arguments)
    assert result.returncode == code
    assert message in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_doctor_names_what_there_is() -> None:
    result = taco_train("doctor")
    names = [line[8:26].strip() for line in result.stdout.splitlines()]
    for name in ("torch", "cores", "instruction sets", "shared memory", "mpirun", "emulated hosts"):
        assert name in names
    assert "taco_train emulate works" in result.stdout
    assert result.returncode == int("MISSING" in result.stdout)


def test_doctor_tells_what_is_absent_from_what_is_missing(tmp_path: Path) -> None:
    result = taco_train(
        "doctor", environment={"PATH": str(tmp_path), "TACO_TRAIN_INTERFACE": "none0"}
    )
    lines = {
        line[8:26].strip(): (line[:8].strip(), line[26:]) for line in result.stdout.splitlines()
    }
    assert lines["mpirun"] == ("absent", "not there; only starting ranks with mpirun needs it")
    assert lines["emulated hosts"][0] == "absent"
    assert "the command ip is missing: install iproute2" in lines["emulated hosts"][1]
    state, text = lines["addresses"]
    assert state == "MISSING"
    assert text.startswith("TACO_TRAIN_INTERFACE is 'none0'; it must be an interface of")
    assert result.returncode == 1
