"""What `horovodrun` cannot do is one line on standard error, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from taco_train.lightcc.launcher.discovery import DiscoveryScript
from taco_train.lightcc.launcher.host_slots import HostsError, HostSlots
from taco_train.lightcc.launcher.options import Options, make_parser, read_options


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-np 2 -H gpu1:x python a", "host 'gpu1:x' cannot be read; write name:slots, e.g. gpu1:8"),
        ("-np 2 -H gpu1:0 python a", "host gpu1 has 0 slots; it must have at least 1"),
        ("-np 2 -H , python a", "the list of hosts is empty"),
        (
            "-np 2 -H a:1,a:2 python a",
            "host a is listed twice; give it one entry with all its slots",
        ),
        (
            "-np 16 -H gpu1:8 gpu2:8 python a",
            "the command begins with 'gpu2:8': separate hosts by commas, -H gpu1:8,gpu2:8",
        ),
        ("-np 2 --hostfile nope python a", "host file nope cannot be read: No such file or "),
        (
            "-np 2 --hostfile /proc/self/exe python a",
            "host file /proc/self/exe cannot be",
        ),
        ("-np 2 --hostfile /dev/zero python a", "host file /dev/zero cannot be read: it has more"),
        (
            "-np 2 -p 99999 python a",
            "argument -p/--ssh-port: '99999' is not a port from 1 to 65535",
        ),
        ("-np 2", "there is no command: horovodrun -np 2 python train.py"),
        ("python a", "-np is missing: the number of ranks"),
        ("-np 1 --cycle-time-ms fast python a", "HOROVOD_CYCLE_TIME is 'fast'; it must be a "),
    ],
)
def test_a_bad_command_line(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        read_options(make_parser(), line.split())
    assert end.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"horovodrun: error: {message}")


def test_horovods_flags_without_meaning_are_accepted() -> None:
    line = "-np 2 --mpi --autotune --num-nccl-streams 2 --network-interfaces eth0,eth1 python a"
    options = read_options(make_parser(), line.split())
    assert isinstance(options, Options)
    assert options.command == ("python", "a")
    assert options.variables == {"TACO_TRAIN_INTERFACE": "eth0,eth1"}
    assert options.ignored_flags == (
        "--mpi has no effect: ranks always negotiate over TCP",
        "--autotune has no effect: the cost model decides",
        "--num-nccl-streams has no effect: each level has one stream",
    )


def test_flags_of_the_script_are_not_called_ignored() -> None:
    line = "-np 2 python a --mpi --num-nccl-streams 2"
    options = read_options(make_parser(), line.split())
    assert isinstance(options, Options)
    assert options.ignored_flags == ()


def test_a_bad_variable_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else every rank would end with a traceback."""
    monkeypatch.setenv("LIGHT_TOPK_RATIO", "2")
    with pytest.raises(SystemExit):
        read_options(make_parser(), ["-np", "2", "python", "train.py"])
    assert "error: LIGHT_TOPK_RATIO is '2'; it must be" in capsys.readouterr().err


def test_a_discovery_script_that_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(HostsError, match=r"--host-discovery-script .*/none is no file$"):
        DiscoveryScript(tmp_path / "none", 1)
    (tmp_path / "plain").write_text("echo localhost:1")
    with pytest.raises(HostsError, match=r"plain cannot be executed: chmod \+x it$"):
        DiscoveryScript(tmp_path / "plain", 1)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo boom >&2; exit 3", "exit code 3: boom"),
        ("exit 4", "exit code 4: it printed no error"),
        (r"printf '\377\376 host\n'", "host '\ufffd\ufffd host' cannot be read; write name:slots"),
        ("echo localhost:many", "host 'localhost:many' cannot be read"),
        ("exec sleep 60", "it has not ended within 0.2 s"),
    ],
)
def test_a_discovery_script_that_fails(
    body: str,
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hosts stay those that it printed last, and the reason is printed once."""
    script = tmp_path / "discover"
    script.write_text(
        f"#!/bin/sh\n[ -e {tmp_path}/bad ] || {{ echo localhost:2; exit; }}\n{body}\n"
    )
    script.chmod(0o755)
    source = DiscoveryScript(script, 1)
    source.close()  # the test looks itself
    (tmp_path / "bad").touch()
    if "sleep" in body:
        monkeypatch.setattr("taco_train.lightcc.launcher.discovery._SCRIPT_SECONDS", 0.2)
    source._look()
    source._look()
    assert source.hosts() == [HostSlots("localhost", 2)]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"horovodrun: {script} does not tell the hosts: {reason}")
