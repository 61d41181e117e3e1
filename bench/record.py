"""Writes a benchmark's figures together with date, command, commit, machine and versions."""

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taco_kernels.library import instruction_set
from taco_llm.bench.environment import machine, versions

RESULTS = Path(__file__).parent / "results"
INSTRUCTION_SETS = {
    "amx": "AMX",
    "avx512_bf16": "AVX-512 BF16",
    "avx512": "AVX-512",
    "avx2": "AVX2",
}


def save(name: str, figures: Mapping[str, Any]) -> Path:
    """Writes `results/<name>.json`; returns its path."""
    path = RESULTS / f"{name}.json"
    write(path, describe() | {"figures": figures})
    return path


def save_by_isa(name: str, figures: Mapping[str, Any]) -> Path:
    """Writes `results/<name>.<isa>.json`; returns its path.

    For figures that depend on the instruction set of the CPU kernels, so that results of machines
    with and without AMX are kept side by side.
    """
    return save(name_by_isa(name), figures)


def name_by_isa(name: str) -> str:
    """Returns the name of `save_by_isa`'s file.

    A long run asks for it first: the kernels cannot be loaded once their sources are edited.
    """
    return f"{name}.{instruction_set()}"


def by_isa(results: Path, name: str) -> dict[str, dict[str, Any]]:
    """Returns the records that `save_by_isa` wrote in a folder, the best instruction set first."""
    paths = {isa: results / f"{name}.{isa}.json" for isa in INSTRUCTION_SETS}
    return {isa: json.loads(path.read_text()) for isa, path in paths.items() if path.exists()}


def read_best(results: Path, name: str) -> dict[str, Any]:
    """Returns the record of that name; of records by instruction set, that of the best set."""
    records = list(by_isa(results, name).values())
    return records[0] if records else json.loads((results / f"{name}.json").read_text())


def widest_instructions(machine: Mapping[str, Any]) -> str:
    """Returns the name of the widest vector instructions of a record's machine."""
    name: str = machine["vector_sets"][-1]
    if name.startswith("amx"):
        return "AMX"
    return name.upper().replace("AVX512", "AVX-512").replace("_", " ")


def check_savable(parser: argparse.ArgumentParser, args: argparse.Namespace, *flags: str) -> None:
    """Ends with a usage error if `--save` comes with a flag that the result's name does not show.

    Such a result would replace that of the default configuration.

    Args:
        flags: names of these flags as attributes of `args`.
    """
    for flag in flags:
        if args.save and getattr(args, flag) != parser.get_default(flag):
            name = f"--{flag.replace('_', '-')}"
            parser.error(f"--save with {name} would replace the result without {name}")


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
