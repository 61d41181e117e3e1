"""`taco_train emulate`: runs ranks on emulated hosts, with slow links between them."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from taco_train.cluster.emulation.emulator import HostCounters, emulate
from taco_train.cluster.emulation.fabric import Fabric, parse_delay, parse_loss, parse_rate
from taco_train.cluster.emulation.init import EmulationError
from taco_train.cluster.emulation.run import run_ranks

_DESCRIPTION = """\
Runs COMMAND once a rank on hosts that are network namespaces of this machine. The links between
them have a rate, a delay, a loss and equal-cost paths. Ranks get the variables of torchrun (RANK,
WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ...) and TACO_TRAIN_HOST. The machine's own network is neither
used nor changed, and everything ends with this command.
"""
_EXAMPLE = """\
example:
  taco_train emulate --hosts 2 --ranks-per-host 2 --rate 200mbit -- python train.py
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "emulate",
        help="run ranks on emulated hosts with slow links",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--hosts", type=int, default=2, metavar="N", help="number of hosts (default 2)"
    )
    parser.add_argument(
        "--ranks-per-host",
        type=int,
        default=1,
        metavar="N",
        help="number of ranks on each host (default 1)",
    )
    parser.add_argument(
        "--rate",
        type=_checked(parse_rate),
        metavar="RATE",
        help="rate of each path of a host in each direction, such as 200mbit or 1gbit "
        "(default: as fast as the machine)",
    )
    parser.add_argument(
        "--delay",
        type=_checked(parse_delay),
        default=0.0,
        metavar="TIME",
        help="time from one host to another, one way, such as 500us or 5ms (default 0)",
    )
    parser.add_argument(
        "--loss",
        type=_checked(parse_loss),
        default=0.0,
        metavar="SHARE",
        help="percentage of the packets between two hosts that are lost, such as 1%% (default 0)",
    )
    parser.add_argument(
        "--paths",
        type=int,
        default=1,
        metavar="N",
        help="equal-cost paths of each host; addresses and ports of a connection choose one "
        "(default 1)",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="write exit codes and the hosts' byte counters to FILE as JSON",
    )
    parser.add_argument(
        "rank_command", nargs=argparse.REMAINDER, metavar="COMMAND ...", help="what each rank runs"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the ranks; returns the exit code of the first rank that failed, or 0."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    command = options.rank_command
    if command[:1] == ["--"]:
        command = command[1:]
    try:
        if not command:
            raise ValueError("there is no command: taco_train emulate --hosts 2 -- python train.py")
        if options.ranks_per_host < 1:
            raise ValueError(f"--ranks-per-host is {options.ranks_per_host}; it must be at least 1")
        if options.report is not None:
            _write(options.report, "")  # before the ranks run: afterwards it would be too late
        fabric = Fabric(options.hosts, options.rate, options.delay, options.loss, options.paths)
        with emulate(fabric) as hosts:
            codes = run_ranks(
                hosts,
                command,
                options.ranks_per_host,
                stdout=sys.stdout.buffer,
                stderr=sys.stderr.buffer,
            )
            counters = hosts.counters()
        if options.report is not None:
            report = {"exit_codes": codes, "hosts": [asdict(counted) for counted in counters]}
            _write(options.report, json.dumps(report, indent=2) + "\n")
    except (EmulationError, ValueError, OSError) as error:
        print(f"taco_train emulate: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    for counted in counters:
        print(describe(counted), file=sys.stderr)
    return _exit_code(codes, options.ranks_per_host)


def describe(counted: HostCounters) -> str:
    """One line of text with a host's counters."""
    return (
        f"{counted.host}: sent {counted.sent_bytes:,} bytes in {counted.sent_packets:,} packets, "
        f"received {counted.received_bytes:,} bytes in {counted.received_packets:,} packets"
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise OSError(f"--report {path} cannot be written: {error.strerror}") from None


def _exit_code(codes: Sequence[int], ranks_per_host: int) -> int:
    """That of a rank that failed by itself, before those of ranks that were then terminated."""
    failed = [rank for rank, code in enumerate(codes) if code]
    if not failed:
        return 0
    rank = next((rank for rank in failed if codes[rank] != -signal.SIGTERM), failed[0])
    code = codes[rank]
    how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
    host = f"host{rank // ranks_per_host}"
    print(f"taco_train emulate: error: rank {rank} on {host} ended with {how}", file=sys.stderr)
    return code if code > 0 else 128 - code


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _checked(parse: Any) -> Any:
    """A parser whose ValueError argparse shows as it is."""

    def parsed(text: str) -> float:
        try:
            return float(parse(text))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed
