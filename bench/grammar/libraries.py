"""Grammar libraries side by side: time to compile a grammar and to compute a mask.

    python -m bench.grammar.libraries [--xgrammar FOLDER] [--rounds 3] [--save]

A vocabulary of 151,643 tokens, one thread. Each measurement has its own process. xgrammar is
measured if FOLDER holds it; it is no dependency of TACO:

    pip install --target FOLDER --no-deps xgrammar==0.2.8 apache-tvm-ffi
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench import record
from bench.grammar.inputs import Case, cases, model_folder
from bench.peers.make_checkpoint import SHAPES

TIMEOUT_SECONDS = 120.0
_DRIVERS = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, default=Path("/tmp/taco-grammar"))
    parser.add_argument("--xgrammar", type=Path, help="folder that holds xgrammar")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    args = parser.parse_args()
    tokenizer = model_folder(args.directory) / "tokenizer.json"
    paths: dict[str, Path | None] = {"llguidance": None}
    if args.xgrammar is not None:
        paths["xgrammar"] = args.xgrammar
    figures: dict[str, dict[str, Any]] = {library: {} for library in paths}
    print(f"{'grammar':20}{'library':12}{'compile ms':>12}{'mask us':>10}{'p99':>10}{'most':>10}")
    for case in cases():
        for library, path in paths.items():
            found = measure(library, path, tokenizer, case, args.rounds)
            figures[library] |= {case.name: found}
            columns = (found.get(name, "-") for name in ("compile_ms", "median", "p99", "most"))
            line = "".join(f"{column:>11}" for column in columns)
            print(f"{case.name:20}{library:12}{line}  {found.get('error', '')}", flush=True)
    if args.save:
        print(record.save("grammar_libraries", figures))


def measure(
    library: str, path: Path | None, tokenizer: Path, case: Case, rounds: int
) -> dict[str, Any]:
    """Runs a driver: milliseconds to compile (the median), microseconds of a mask."""
    request = {
        "tokenizer": str(tokenizer),
        "vocab_size": SHAPES["qwen2-0.5b"]["vocab_size"],
        "rounds": rounds,
        "kind": case.kind,
        "value": case.value,
        "text": case.text,
    }
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    command = [sys.executable, str(_DRIVERS / f"drive_{library}.py")]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request),
            capture_output=True,
            text=True,
            env=environment,
            timeout=TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"more than {TIMEOUT_SECONDS:.0f} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return {"error": lines[-1][:200]}
    found = json.loads(done.stdout.splitlines()[-1])
    masks = np.array(found["mask_us"])
    return {
        "version": found["version"],
        "load_ms": round(found["load_ms"]),
        "compile_ms": round(float(np.median(found["compile_ms"])), 2),
        "median": round(float(np.median(masks)), 1),
        "p99": round(float(np.percentile(masks, 99)), 1),
        "most": round(float(masks.max()), 1),
    }


if __name__ == "__main__":
    main()
