"""How long streams pause when a service dies, hangs or is cut off, with production timeouts.

Runs `tests/chaos`, whose tests assert that no token is lost, and prints the longest pause of each
stream by fault: mostly 18 streams, and at least 1,000 requests while workers are replaced. `make
chaos` runs it. Some tests need the right to create network namespaces, and iproute2's `ip`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from bench.record import save

ROOT = Path(__file__).parents[2]


def measure(arguments: list[str]) -> tuple[dict[str, list[float]], int]:
    """Returns the pauses by test in seconds, and pytest's exit code."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "stalls.json"
        command = [sys.executable, "-m", "pytest", "tests/chaos", "--stalls", str(report)]
        code = subprocess.run([*command, *arguments], cwd=ROOT, check=False).returncode
        return json.loads(report.read_text()) if report.exists() else {}, code


def summarize(stalls: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Returns one row per fault that was measured with streams beside it."""
    return {
        name.removeprefix("test_"): {
            "streams": len(seconds),
            "stall_p50_s": round(float(np.percentile(seconds, 50)), 3),
            "stall_p99_s": round(float(np.percentile(seconds, 99)), 3),
            "stall_max_s": round(max(seconds), 3),
        }
        for name, seconds in stalls.items()
        if seconds
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true")
    options, rest = parser.parse_known_args()
    stalls, code = measure(rest)
    rows = summarize(stalls)
    print(f"{'fault':60} {'streams':>8} {'p50 s':>8} {'p99 s':>8} {'max s':>8}")
    for name, row in rows.items():
        figures = " ".join(f"{row[f'stall_{key}_s']:8.2f}" for key in ("p50", "p99", "max"))
        print(f"{name:60} {row['streams']:8} {figures}")
    if options.save and code == 0:
        print(save("chaos", rows))
    return code


if __name__ == "__main__":
    sys.exit(main())
