"""`taco_train doctor`: what this machine has of what training and its emulation use."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from taco_train.cluster import hosts, pmix
from taco_train.cluster.emulation.emulator import emulate
from taco_train.cluster.emulation.fabric import Fabric
from taco_train.cluster.emulation.init import EmulationError
from taco_train.cluster.launch import Launch
from taco_train.native import build

_INSTRUCTION_SETS = {"avx2": "AVX2", "avx512f": "AVX-512", "amx_tile": "AMX"}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="say what this machine can do",
        description="Says what this machine has: cores, instruction sets, shared memory, network "
        "interfaces, namespaces, MPI, libraries. Exits with 1 where something that training needs "
        "is missing.",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    is_complete = True
    for name, is_good, text in examine():
        is_complete &= is_good
        print(f"{'ok' if is_good else 'MISSING':8}{name:18}{text}")
    sys.stdout.flush()
    return 0 if is_complete else 1


def examine() -> Iterator[tuple[str, bool, str]]:
    """Name, whether training can run with it, and what there is."""
    yield "python", True, platform.python_version()
    yield _package("torch", is_needed=True)
    yield _package("ray", is_needed=False)
    yield "cores", True, f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} for this process"
    yield "instruction sets", True, _instruction_sets()
    yield "shared memory", True, _shared_memory()
    yield "host", True, hosts.host_label(Launch(host=os.environ.get("TACO_TRAIN_HOST", "")))
    yield "addresses", True, ", ".join(hosts.own_addresses()) or "only loopback"
    for component in build.COMPONENTS:
        library = build.library_file(component)
        text = str(library) if library.is_file() else "run `make train`"
        yield f"lib {component}", library.is_file(), text
    mpirun = shutil.which("mpirun")
    yield "mpirun", True, mpirun or "not there; only starting ranks with mpirun needs it"
    library_name = pmix.find_library()
    missing = "not there; plain mpirun needs it, or -x MASTER_ADDR and -x MASTER_PORT"
    yield "libpmix", True, library_name or missing
    yield "emulated hosts", True, _emulation()


def _package(name: str, *, is_needed: bool) -> tuple[str, bool, str]:
    if importlib.util.find_spec(name) is None:
        return name, not is_needed, "not installed"
    return name, True, metadata.version(name)


def _instruction_sets() -> str:
    cpu = Path("/proc/cpuinfo").read_text()
    flags = next((line for line in cpu.splitlines() if line.startswith("flags")), "").split()
    found = [name for flag, name in _INSTRUCTION_SETS.items() if flag in flags]
    return ", ".join(found) or platform.machine()


def _shared_memory() -> str:
    """Ranks of a host share memfds, which /dev/shm does not limit; the machine's memory does."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    text = f"memory {pages / 2**30:.1f} GiB"
    if Path("/dev/shm").is_dir():
        text += f", /dev/shm {shutil.disk_usage('/dev/shm').total / 2**30:.1f} GiB"
    return text


def _emulation() -> str:
    try:
        with emulate(Fabric(hosts=2, rate=1e8, loss=0.01, delay=0.001)):
            return "taco_train emulate works"
    except EmulationError as error:
        return f"taco_train emulate does not work: {error}"
