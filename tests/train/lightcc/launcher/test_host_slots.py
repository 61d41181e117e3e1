"""Hosts and command lines of `horovodrun`, and what is wrong with bad ones."""

from pathlib import Path

import pytest

from taco_train.cluster.launch import detect
from taco_train.lightcc.launcher.host_slots import (
    HostsError,
    HostSlots,
    assign,
    is_local,
    parse_hosts,
    rank_variables,
    read_host_file,
    store_variables,
)
from taco_train.lightcc.launcher.options import Options, make_parser, read_options


def test_hosts_are_read(tmp_path: Path) -> None:
    assert parse_hosts("a:2, b-1.c") == [HostSlots("a", 2), HostSlots("b-1.c", 1)]
    (tmp_path / "hosts").write_text("a slots=2\n\n# none\nb:3  # three\nc\n")
    assert read_host_file(tmp_path / "hosts") == [
        HostSlots("a", 2),
        HostSlots("b", 3),
        HostSlots("c", 1),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the list of hosts is empty"),
        ("a:b", "host 'a:b' cannot be read"),
        ("a:0", "host a has 0 slots; it must have at least 1"),
        ("a:1,a:2", "host a is listed twice"),
        ("-oProxyCommand=x", "cannot be read"),
    ],
)
def test_bad_hosts_are_named(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(HostsError, match=message):
        parse_hosts(text)
    (tmp_path / "hosts").write_text("a slots=x")
    with pytest.raises(HostsError, match=r"hosts:1: 'a slots=x' cannot be read"):
        read_host_file(tmp_path / "hosts")
    with pytest.raises(HostsError, match="cannot be read: No such file"):
        read_host_file(tmp_path / "none")


def test_ranks_fill_hosts() -> None:
    hosts = assign([HostSlots("a", 2), HostSlots("b", 2)], 3)
    assert hosts == ["a", "a", "b"]
    assert assign([HostSlots("a", 10**12)], 1) == ["a"]
    with pytest.raises(HostsError, match="5 ranks need 5 slots, but the hosts have 2: a:2"):
        assign([HostSlots("a", 2)], 5)
    launches = [detect({**one, **store_variables("h", 1)}) for one in rank_variables(hosts)]
    assert [(one.rank, one.local_rank, one.cross_rank, one.group) for one in launches] == [
        (0, 0, 0, "a"),
        (1, 1, 0, "a"),
        (2, 0, 1, "b"),
    ]
    assert launches[0].has_store


def test_names_that_cannot_be_resolved_are_of_other_hosts() -> None:
    assert not is_local("gpu1..cluster")
    assert not is_local("x" * 64)
    assert is_local("127.0.0.1")


def test_flags_become_variables() -> None:
    flags = ["-np", "2", "--fusion-threshold-mb", "32", "--timeline-filename", "t.json"]
    flags += ["--log-level", "DEBUG", "--disable-cache"]
    options = read_options(make_parser(), [*flags, "python", "train.py", "--verbose"])
    assert isinstance(options, Options)
    assert options.command == ("python", "train.py", "--verbose")
    assert options.hosts == (HostSlots("localhost", 2),)
    assert options.variables == {
        "HOROVOD_FUSION_THRESHOLD": str(32 * 2**20),
        "HOROVOD_TIMELINE": "t.json",
        "HOROVOD_LOG_LEVEL": "DEBUG",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-np", "2"], "there is no command"),
        (["python", "x"], "-np is missing"),
        (["-np", "0", "python"], "'0' is not an integer from 1"),
        (["-np", "1", "--cycle-time-ms", "x", "python"], "HOROVOD_CYCLE_TIME is 'x'; it must be"),
        (["-np", "1", "--log-level", "x", "python"], "HOROVOD_LOG_LEVEL is 'x'; it must be"),
        (["-np", "1", "--start-timeout", "-1", "python"], "is not a number of seconds above 0"),
        (["--min-np", "3", "--max-np", "2", "python"], "--min-np is 3; it must be at most -np and"),
        (["-np", "3", "--max-np", "2", "python"], "--min-np is 3; it must be at most"),
        (["-np", "1", "-H", "a:b", "python"], "host 'a:b' cannot be read"),
    ],
)
def test_bad_flags_are_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        read_options(make_parser(), arguments)
    assert message in capsys.readouterr().err
