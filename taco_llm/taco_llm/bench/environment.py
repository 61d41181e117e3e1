"""The environment of a benchmark, for its results: machine, versions, command, date."""

import datetime
import os
import platform
import shlex
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("taco-llm", "torch", "numpy", "grpcio", "protobuf", "fastapi", "uvicorn", "tokenizers")
VECTOR_SETS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
# Models by family, as in arch/x86/kernel/cpu/amd.c of Linux.
_ZEN = {
    "Zen 3": {25: (*range(0x10), *range(0x20, 0x60))},
    "Zen 4": {25: (*range(0x10, 0x20), *range(0x60, 0xB0))},
    "Zen 5": {26: (*range(0x30), *range(0x40, 0x50), *range(0x60, 0x80))},
}
_SECRET_FLAGS = ("--api-key", "--header")


def environment(argv: Sequence[str]) -> dict[str, Any]:
    """Date, command, machine and versions.

    Args:
        argv: the command line. Values of flags with secrets are left out.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(_without_secrets(argv)),
        "machine": machine(),
        "versions": versions(),
    }


def machine() -> dict[str, Any]:
    """CPU model, vector instruction sets, cores available to this process, memory, system."""
    first_core = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    fields = (line.partition(":") for line in first_core.splitlines())
    described = {name.strip(): value.strip() for name, _, value in fields}
    flags = described.get("flags", "").split()
    return {
        "cpu": cpu_name(described),
        "vector_sets": [name for name in VECTOR_SETS if name in flags],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def cpu_name(described: Mapping[str, str]) -> str:
    """The model of a CPU, with the generation of an AMD EPYC or Ryzen from Zen 3 on.

    Virtual machines call all of them "AMD EPYC".

    Args:
        described: fields of /proc/cpuinfo.
    """
    name = described.get("model name", "unknown")
    if described.get("vendor_id") != "AuthenticAMD":
        return name
    family, model = int(described["cpu family"]), int(described["model"])
    generation = next((zen for zen, of in _ZEN.items() if model in of.get(family, ())), None)
    return name if generation is None else f"{name} ({generation})"


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions of Python and of packages. Imports none of them."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _without_secrets(argv: Sequence[str]) -> list[str]:
    shown: list[str] = []
    hide = False
    for argument in argv:
        flag, equals, _ = argument.partition("=")
        is_secret = flag.replace("_", "-") in _SECRET_FLAGS
        if hide:
            shown.append("***")
        else:
            shown.append(f"{flag}=***" if is_secret and equals else argument)
        hide = is_secret and not equals
    return shown
