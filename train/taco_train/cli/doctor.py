"""`taco_train doctor`: what this machine has of what training and its emulation use."""

from __future__ import annotations

import argparse
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
from taco_train.cluster.launch import HOST_VARIABLE, Launch
from taco_train.cluster.store import RendezvousError
from taco_train.native import build

# States: `absent` is what training can do without.
_OK, _ABSENT, _MISSING = "ok", "absent", "MISSING"
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
    for name, state, text in examine():
        is_complete &= state != _MISSING
        print(f"{state:8}{name:18}{text}")
    sys.stdout.flush()
    return 0 if is_complete else 1


def examine() -> Iterator[tuple[str, str, str]]:
    """Name, state, and what there is."""
    yield "python", _OK, platform.python_version()
    yield _package("torch", absent=_MISSING)
    yield _package("ray", absent=_ABSENT)
    yield "cores", _OK, f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} for this process"
    yield "instruction sets", _OK, _instruction_sets()
    yield "shared memory", _OK, _shared_memory()
    yield "host", _OK, hosts.host_label(Launch(host=os.environ.get(HOST_VARIABLE, "")))
    yield _addresses()
    for component in build.COMPONENTS:
        library = build.library_file(component)
        is_there = library.is_file()
        text = str(library) if is_there else "run `make train`"
        yield f"lib {component}", _OK if is_there else _MISSING, text
    mpirun = shutil.which("mpirun")
    without = "not there; only starting ranks with mpirun needs it"
    yield "mpirun", _OK if mpirun else _ABSENT, mpirun or without
    pmix_library = pmix.find_library()
    without = "not there; plain mpirun needs it, or -x MASTER_ADDR and -x MASTER_PORT"
    yield "libpmix", _OK if pmix_library else _ABSENT, pmix_library or without
    yield _emulation()


def _package(name: str, *, absent: str) -> tuple[str, str, str]:
    try:
        return name, _OK, metadata.version(name)
    except metadata.PackageNotFoundError:
        return name, absent, "not installed"


def _addresses() -> tuple[str, str, str]:
    try:
        hosts.check_interface(os.environ)
    except RendezvousError as error:
        return "addresses", _MISSING, str(error)
    return "addresses", _OK, ", ".join(hosts.own_addresses()) or "only loopback"


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


def _emulation() -> tuple[str, str, str]:
    try:
        with emulate(Fabric(hosts=2, rate=1e8, loss=0.01, delay=0.001)):
            return "emulated hosts", _OK, "taco_train emulate works"
    except (EmulationError, OSError) as error:
        return "emulated hosts", _ABSENT, f"taco_train emulate does not work: {error}"
