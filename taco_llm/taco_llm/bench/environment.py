"""What must be known to read a benchmark's figures later: machine, versions, command, date."""

import datetime
import os
import platform
import shlex
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("taco-llm", "torch", "numpy", "grpcio", "protobuf", "fastapi", "uvicorn", "tokenizers")
_SECRET_FLAGS = ("--api-key", "--header")


def environment(argv: Sequence[str]) -> dict[str, Any]:
    """Date, command, machine and versions of this process.

    Args:
        argv: the command; what follows a flag that holds a secret is left out.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(_without_secrets(argv)),
        "machine": machine(),
        "versions": versions(),
    }


def machine() -> dict[str, Any]:
    """CPU, cores that this process may use, memory, system."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Of Python and of packages, without importing them."""
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
