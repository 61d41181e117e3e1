"""Writes a benchmark's figures with all that is needed to read them later."""

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
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    record = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": shlex.join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]]),
        "commit": _commit(),
        "machine": machine(),
        "versions": versions(),
        "figures": figures,
    }
    path.write_text(json.dumps(record, indent=2) + "\n")
    return path


def _commit() -> str:
    command = ["git", "-C", str(RESULTS.parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
