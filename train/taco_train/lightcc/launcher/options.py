"""The command line of `horovodrun`."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from taco_train.cluster.launch import MAX_PORT
from taco_train.lightcc.launcher.host_slots import (
    HostsError,
    HostSlots,
    parse_hosts,
    read_host_file,
)
from taco_train.lightcc.launcher.ignored_flags import add_ignored_flags, ignored_flags
from taco_train.lightcc.launcher.rank_process import Connection
from taco_train.lightcc.settings import settings_from
from taco_train.lightcc.variables import VariableError

_DEFAULT_START_SECONDS = 30.0
_DEFAULT_ELASTIC_SECONDS = 600.0
_HOST_AND_SLOTS = re.compile(r"[A-Za-z0-9._-]+:[0-9]+")


@dataclass(frozen=True)
class Options:
    """What to run, where, and how.

    Attributes:
        command: empty where ranks are no commands (Ray).
        num_ranks: of all ranks; in an elastic job, of the first round; None: as many as there are.
        hosts: empty in an elastic job with a discovery script.
        variables: that flags set, for all ranks.
        min_ranks, max_ranks: of an elastic job; None: not given.
        discovery_script: prints the hosts; None: they do not change.
        elastic_timeout: seconds to wait for enough ranks after one was lost.
        reset_limit: how often ranks may connect anew; None: without a limit.
        ignored_flags: a line for each flag that was given and has no effect.
    """

    command: tuple[str, ...]
    num_ranks: int | None
    hosts: tuple[HostSlots, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    connection: Connection = field(default_factory=Connection)
    output_folder: Path | None = None
    start_timeout: float = _DEFAULT_START_SECONDS
    is_verbose: bool = False
    min_ranks: int | None = None
    max_ranks: int | None = None
    discovery_script: Path | None = None
    slots_per_host: int = 1
    elastic_timeout: float = _DEFAULT_ELASTIC_SECONDS
    reset_limit: int | None = None
    ignored_flags: tuple[str, ...] = ()

    @property
    def is_elastic(self) -> bool:
        return self.discovery_script is not None or self.min_ranks is not None


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="horovodrun",
        description="Start a training script on every rank of a job.",
        allow_abbrev=False,
        usage="horovodrun -np N [-H host:slots,...] [options] command ...",
    )
    add = parser.add_argument
    add("-v", "--version", action="store_true", help="Print the version, and exit.")
    add("-cb", "--check-build", action="store_true", help="Print what is supported, and exit.")
    add("-np", "--num-proc", type=_positive, metavar="N", help="Number of ranks.")
    add("-p", "--ssh-port", type=_port, metavar="PORT", help="Port of ssh on other hosts.")
    add("-i", "--ssh-identity-file", metavar="FILE", help="Private key for ssh.")
    add("--verbose", action="store_true", help="Print where each rank runs.")
    add("--output-filename", type=Path, metavar="FOLDER", help="Copies output to rank.N/ in it.")
    add(
        "--start-timeout",
        type=_positive_seconds,
        default=_DEFAULT_START_SECONDS,
        metavar="SECONDS",
        help="Maximum seconds until every rank has started (default 30).",
    )
    add(
        "--network-interface",
        "--network-interfaces",
        metavar="NAME,...",
        help="Interfaces that the hosts share, e.g. eth0.",
    )
    add_ignored_flags(parser)
    hosts = parser.add_argument_group("hosts (default: this one)").add_mutually_exclusive_group()
    hosts.add_argument("-H", "--hosts", metavar="HOST:SLOTS,...", help="Hosts and their slots.")
    hosts.add_argument("-hostfile", "--hostfile", type=Path, help="File of lines `name slots=8`.")
    hosts.add_argument(
        "--host-discovery-script",
        type=Path,
        metavar="SCRIPT",
        help="Program that prints `name:slots` lines; runs every second (elastic jobs).",
    )
    _add_elastic(parser)
    _add_tuning(parser)
    add("command", nargs=argparse.REMAINDER, help="The script: python train.py ...")
    return parser


def _add_elastic(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("elastic jobs").add_argument
    add("--min-np", "--min-num-proc", type=_positive, metavar="N", help="Fewest ranks.")
    add("--max-np", "--max-num-proc", type=_positive, metavar="N", help="Most ranks.")
    add(
        "--slots-per-host",
        type=_positive,
        default=1,
        metavar="N",
        help="Slots of hosts that the discovery script prints without a number (default 1).",
    )
    add(
        "--elastic-timeout",
        type=_positive_seconds,
        default=_DEFAULT_ELASTIC_SECONDS,
        metavar="SECONDS",
        help="Maximum seconds to wait for enough ranks after one was lost (default 600). A rank "
        "that is this late for the next round is ended. HOROVOD_STALL_SHUTDOWN_TIME_SECONDS, "
        "where it is set, is the limit for late ranks.",
    )
    add("--reset-limit", type=_positive, metavar="N", help="How often ranks may connect anew.")


def _add_tuning(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("tuning: sets the variable for all ranks").add_argument
    add("--fusion-threshold-mb", type=_whole, metavar="MB", help="HOROVOD_FUSION_THRESHOLD.")
    add("--cycle-time-ms", metavar="MS", help="HOROVOD_CYCLE_TIME.")
    add("--cache-capacity", metavar="N", help="HOROVOD_CACHE_CAPACITY.")
    add("--timeline-filename", metavar="FILE", help="HOROVOD_TIMELINE.")
    add("--timeline-mark-cycles", action="store_true", help="HOROVOD_TIMELINE_MARK_CYCLES.")
    add("--no-stall-check", action="store_true", help="HOROVOD_STALL_CHECK_DISABLE.")
    add(
        "--stall-check-warning-time-seconds",
        metavar="SECONDS",
        help="HOROVOD_STALL_CHECK_TIME_SECONDS.",
    )
    add(
        "--stall-check-shutdown-time-seconds",
        metavar="SECONDS",
        help="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS.",
    )
    add("--gloo-timeout-seconds", metavar="SECONDS", help="HOROVOD_GLOO_TIMEOUT_SECONDS.")
    add("--log-level", metavar="LEVEL", help="HOROVOD_LOG_LEVEL.")


_VARIABLES = {
    "cycle_time_ms": "HOROVOD_CYCLE_TIME",
    "cache_capacity": "HOROVOD_CACHE_CAPACITY",
    "timeline_filename": "HOROVOD_TIMELINE",
    "stall_check_warning_time_seconds": "HOROVOD_STALL_CHECK_TIME_SECONDS",
    "stall_check_shutdown_time_seconds": "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
    "gloo_timeout_seconds": "HOROVOD_GLOO_TIMEOUT_SECONDS",
    "log_level": "HOROVOD_LOG_LEVEL",
    "network_interface": "TACO_TRAIN_INTERFACE",
}
_SWITCHES = {
    "timeline_mark_cycles": "HOROVOD_TIMELINE_MARK_CYCLES",
    "no_stall_check": "HOROVOD_STALL_CHECK_DISABLE",
}


def read_options(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> Options | str:
    """The options, or `version` or `check-build` where one of these is asked for.

    Exits with code 2 and one line where the command line is wrong.
    """
    parsed = parser.parse_args(arguments)
    if parsed.version or parsed.check_build:
        return "version" if parsed.version else "check-build"
    command = tuple(parsed.command[1:] if parsed.command[:1] == ["--"] else parsed.command)
    try:
        return _options(parsed, command)
    except (HostsError, VariableError) as error:
        parser.error(str(error))


def _options(parsed: argparse.Namespace, command: tuple[str, ...]) -> Options:
    script, least, most = parsed.host_discovery_script, parsed.min_np, parsed.max_np
    is_elastic = script is not None or least is not None or most is not None
    if not command:
        raise HostsError("there is no command: horovodrun -np 2 python train.py")
    if _HOST_AND_SLOTS.fullmatch(command[0]):
        raise HostsError(
            f"the command begins with {command[0]!r}: separate hosts by commas, -H gpu1:8,gpu2:8"
        )
    if parsed.num_proc is None and not is_elastic:
        raise HostsError("-np is missing: the number of ranks")
    if is_elastic:
        least = least or parsed.num_proc or 1
        if (most is not None and most < least) or (parsed.num_proc or least) < least:
            raise HostsError(f"--min-np is {least}; it must be at most -np and --max-np")
        if most is not None and (parsed.num_proc or most) > most:
            raise HostsError(f"-np is {parsed.num_proc}; it must be at most --max-np, {most}")
    hosts: list[HostSlots] = []
    if parsed.hosts is not None:
        hosts = parse_hosts(parsed.hosts)
    elif parsed.hostfile is not None:
        hosts = read_host_file(parsed.hostfile)
    elif script is None:
        hosts = [HostSlots("localhost", most or parsed.num_proc or least)]
    return Options(
        command=command,
        num_ranks=parsed.num_proc,
        hosts=tuple(hosts),
        variables=_variables(parsed),
        connection=Connection(parsed.ssh_port, parsed.ssh_identity_file),
        output_folder=parsed.output_filename,
        start_timeout=parsed.start_timeout,
        is_verbose=parsed.verbose,
        min_ranks=least,
        max_ranks=most,
        discovery_script=script,
        slots_per_host=parsed.slots_per_host,
        elastic_timeout=parsed.elastic_timeout,
        reset_limit=parsed.reset_limit,
        ignored_flags=tuple(ignored_flags(parsed)),
    )


def _variables(parsed: argparse.Namespace) -> dict[str, str]:
    made = {
        variable: str(getattr(parsed, name))
        for name, variable in _VARIABLES.items()
        if getattr(parsed, name) is not None
    }
    made.update({variable: "1" for name, variable in _SWITCHES.items() if getattr(parsed, name)})
    if parsed.fusion_threshold_mb is not None:
        made["HOROVOD_FUSION_THRESHOLD"] = str(parsed.fusion_threshold_mb * 2**20)
    settings_from({**os.environ, **made})  # raises where a value cannot be
    return made


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 1")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 1 to {MAX_PORT}")
    return int(text)


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 0")
    return int(text)


def _positive_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds
