"""Flags of Horovod's `horovodrun` that have no effect here. Its scripts keep working."""

from __future__ import annotations

import argparse

from taco_train.lightcc.variables import WITHOUT_MEANING

_TCP = WITHOUT_MEANING["HOROVOD_CONTROLLER"]
_LEVELS = WITHOUT_MEANING["HOROVOD_HIERARCHICAL_ALLREDUCE"]
_COST_MODEL = WITHOUT_MEANING["HOROVOD_AUTOTUNE"]
_NO_MPI = "ranks are started without MPI"
_LOGGING = "the script's logging decides"

_SWITCHES = {
    "--gloo": _TCP,
    "--mpi": _TCP,
    "--disable-cache": "nothing is cached between jobs",
    "--hierarchical-allreduce": _LEVELS,
    "--no-hierarchical-allreduce": _LEVELS,
    "--hierarchical-allgather": _LEVELS,
    "--no-hierarchical-allgather": _LEVELS,
    "--autotune": _COST_MODEL,
    "--no-autotune": _COST_MODEL,
    "--mpi-threads-disable": _NO_MPI,
    "--no-mpi-threads-disable": _NO_MPI,
    "--no-timeline-mark-cycles": "cycles are marked only with --timeline-mark-cycles",
    "--stall-check": "stalls are reported unless --no-stall-check is given",
    "--log-with-timestamp": _LOGGING,
    "--log-without-timestamp": _LOGGING,
}
_VALUES = {
    "--autotune-log-file": _COST_MODEL,
    "--autotune-warmup-samples": _COST_MODEL,
    "--autotune-steps-per-sample": _COST_MODEL,
    "--autotune-bayes-opt-max-samples": _COST_MODEL,
    "--autotune-gaussian-process-noise": _COST_MODEL,
    "--num-nccl-streams": WITHOUT_MEANING["HOROVOD_NUM_NCCL_STREAMS"],
    "--thread-affinity": WITHOUT_MEANING["HOROVOD_THREAD_AFFINITY"],
    "--mpi-args": _NO_MPI,
}


def add_ignored_flags(parser: argparse.ArgumentParser) -> None:
    for name, reason in _SWITCHES.items():
        parser.add_argument(name, action="store_true", default=None, help=_help(reason))
    for name, reason in _VALUES.items():
        parser.add_argument(name, metavar="VALUE", help=_help(reason))


def _help(reason: str) -> str:
    return f"Accepted for Horovod's scripts; has no effect: {reason}."


def ignored_flags(parsed: argparse.Namespace) -> list[str]:
    """One line for each ignored flag that was given: its name, and why it has no effect."""
    return [
        f"{name} has no effect: {reason}"
        for name, reason in {**_SWITCHES, **_VALUES}.items()
        if getattr(parsed, name.removeprefix("--").replace("-", "_")) is not None
    ]
