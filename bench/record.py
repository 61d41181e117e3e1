"""Writes a benchmark's figures together with date, command, commit, machine and versions."""

import datetime
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taco_llm.bench.environment import machine, versions

RESULTS = Path(__file__).parent / "results"


def save(name: str, figures: Mapping[str, Any]) -> Path:
    """Writes `results/<name>.json`; returns its path."""
    path = RESULTS / f"{name}.json"
    write(path, describe() | {"figures": figures})
    return path


def describe() -> dict[str, Any]:
    """Returns date, command, commit, machine and versions of this process."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": shlex.join(["python", *_script(), *sys.argv[1:]]),
        "commit": _commit(),
        "machine": machine(),
        "versions": versions(),
    }


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Writes a record atomically: a killed process leaves the old file or the new one, never half a
    file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(json.dumps(record, indent=2) + "\n")
    unfinished.replace(path)


def _script() -> list[str]:
    """Returns how Python was told to run this script: `-m bench.scheduler.step`, or a path."""
    spec = sys.modules["__main__"].__spec__
    return ["-m", spec.name] if spec else [os.path.relpath(sys.argv[0])]


def _commit() -> str:
    command = ["git", "-C", str(RESULTS.parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""
