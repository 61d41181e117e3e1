"""Draws docs/images/speculation.svg, and makes the docs' table, from bench.engine.speculation.

python -m bench.report.speculation
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.record import INSTRUCTION_SETS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
PLOT = ROOT / "docs" / "images" / "speculation.svg"

Record = dict[str, Any]

_HEADINGS = (
    "instruction set",
    "workload",
    "drafter",
    "batch",
    "plain tokens/s",
    "tokens/s",
    "speed-up (95% interval)",
    "of decoding alone",
    "accepted a step",
    "verified a step",
    "accepted of those",
)


def speculation_table(results: Path) -> Iterator[str]:
    """Yields the table of all runs: the files `speculation*.ISA.json`."""
    records = _records(results)
    if not records:
        yield "Nothing has been recorded yet."
        return
    yield f"| {' | '.join(_HEADINGS)} |"
    yield "|---" * len(_HEADINGS) + "|"
    for isa, record in records:
        for workload, drafters in record["figures"].items():
            for drafter, batches in drafters.items():
                for batch, figures in batches.items():
                    yield _row(INSTRUCTION_SETS[isa], workload, drafter, batch, figures)
    yield ""
    for note in dict.fromkeys(_note(record) for _, record in records):
        yield from note.splitlines()


def _row(isa: str, workload: str, drafter: str, batch: str, figures: Record) -> str:
    (low, high), (decode_low, decode_high) = figures["interval"], figures["decode_interval"]
    cells = (
        isa,
        workload,
        drafter,
        batch,
        f"{figures['plain_tokens_per_s']:,.0f}",
        f"{figures['tokens_per_s']:,.0f}",
        f"{figures['speedup']:.2f} ({low:.2f}–{high:.2f})",
        f"{figures['decode_speedup']:.2f} ({decode_low:.2f}–{decode_high:.2f})",
        f"{figures['accepted_per_step']:.2f}",
        f"{figures['verified_per_step']:.2f}",
        f"{figures['acceptance_rate']:.0%}",
    )
    return f"| {' | '.join(cells)} |"


def _note(record: Record) -> str:
    """Machine, date and command of a run, in lines of at most 120 characters."""
    machine = record["machine"]
    sets = ", ".join(machine.get("vector_sets", ())) or "unknown vector sets"
    about = f"On {machine['cpu']} with {machine['cores']} cores ({sets}), {record['date']}:"
    return textwrap.fill(f"{about} `{record['command']}`.", width=118, break_on_hyphens=False)


def write_plot(results: Path, path: Path) -> None:
    """Draws one column per workload: speed-up with its interval above, accepted drafts below."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "taco"  # equal figures give an equal file
    merged: dict[str, dict[str, Record]] = {}
    records = _records(results)
    for isa, record in records:
        if isa != records[0][0]:
            break  # one plot does not mix machines
        for workload, drafters in record["figures"].items():
            for drafter, batches in drafters.items():
                merged.setdefault(workload, {}).setdefault(drafter, {}).update(batches)
    figure = Figure(figsize=(3.2 * len(merged), 6), layout="constrained")
    rows = figure.subplots(2, len(merged), squeeze=False)
    for column, (workload, drafters) in enumerate(merged.items()):
        speedups, accepted = rows[0][column], rows[1][column]
        for drafter, batches in drafters.items():
            places = range(len(batches))
            ratios = [figures["decode_speedup"] for figures in batches.values()]
            below = [f["decode_speedup"] - f["decode_interval"][0] for f in batches.values()]
            above = [f["decode_interval"][1] - f["decode_speedup"] for f in batches.values()]
            speedups.errorbar(
                places, ratios, yerr=[below, above], marker="o", capsize=3, label=drafter
            )
            lengths = [figures["accepted_per_step"] for figures in batches.values()]
            accepted.plot(places, lengths, marker="o", label=drafter)
            for axes in (speedups, accepted):
                axes.set_xticks(list(places), list(batches))
                axes.set_xlabel("sequences")
                axes.grid(alpha=0.3)
        speedups.axhline(1, color="gray", linewidth=1)
        speedups.set_title(workload)
        speedups.set_ylim(bottom=0)
        accepted.set_ylim(bottom=0)
        accepted.legend(fontsize="small")
    rows[0][0].set_ylabel("speed-up of decoding")
    rows[1][0].set_ylabel("accepted drafts a step")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def _records(results: Path) -> list[tuple[str, Record]]:
    """Returns each run with its instruction set, the best set first."""
    return [
        (isa, json.loads(path.read_text()))
        for isa in INSTRUCTION_SETS
        for path in sorted(results.glob(f"speculation*.{isa}.json"))
    ]


if __name__ == "__main__":
    write_plot(RESULTS, PLOT)
    print(f"written: {PLOT}")
