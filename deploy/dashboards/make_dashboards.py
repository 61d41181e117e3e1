"""Generates the Grafana dashboards' JSON from the YAML files in this folder.

    python deploy/dashboards/make_dashboards.py

A file lists rows of panels; a panel's fields are those of `grafana.Panel`. In addition,
`percentiles: METRIC{@JOB}` expands to queries of a histogram's 50th, 90th and 99th percentile.
A dashboard with `job` ends with a row about the job's processes: CPU, memory, version.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from grafana import Dashboard, Panel, Row

SOURCES = Path(__file__).parent
TARGET = SOURCES.parent / "helm/taco-llm/files/dashboards"


def main() -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    for path in TARGET.glob("*.json"):
        path.unlink()
    for name, text in dashboards().items():
        (TARGET / name).write_text(text, encoding="utf-8")


def dashboards() -> dict[str, str]:
    """Maps file names to their JSON."""
    boards = [read_board(path) for path in sorted(SOURCES.glob("*.yaml"))]
    return {
        f"{board.uid}.json": json.dumps(board.to_json(), indent=1, ensure_ascii=False) + "\n"
        for board in boards
    }


def read_board(path: Path) -> Dashboard:
    fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    rows = [Row(row["title"], list(map(_panel, row["panels"]))) for row in fields.pop("rows")]
    if "job" in fields:
        rows.append(_processes(fields["job"]))
    return Dashboard(**fields, rows=rows)


def _panel(fields: dict[str, Any]) -> Panel:
    percentiles = fields.pop("percentiles", None)
    return Panel(**fields) if percentiles is None else Panel(**fields, queries=_of(percentiles))


def _of(histogram: str) -> Mapping[str, str]:
    """`histogram`: a metric and its matchers."""
    buckets = f"sum by (le) (rate({histogram.replace('{', '_bucket{', 1)}[$__rate_interval]))"
    return {
        f"p{share * 100:g}": f"histogram_quantile({share}, {buckets})" for share in (0.5, 0.9, 0.99)
    }


def _processes(job: str) -> Row:
    of = f'{{job="{job}",instance=~"$instance"}}'
    return Row(
        "Processes",
        [
            Panel(
                title="CPU",
                description="CPU cores used by each process.",
                queries={"{{instance}}": f"rate(process_cpu_seconds_total{of}[$__rate_interval])"},
                width=8,
            ),
            Panel(
                title="Resident memory",
                description="Resident memory of each process, without GPU memory.",
                queries={"{{instance}}": f"process_resident_memory_bytes{of}"},
                unit="bytes",
                width=8,
            ),
            Panel(
                title="Version",
                description="Running versions. More than one is normal only during an upgrade.",
                queries={"{{version}}": f"count by (version) (taco:build_info{of})"},
                width=8,
            ),
        ],
    )


if __name__ == "__main__":
    main()
