"""The final table of a run: each part's status, and the goals."""

from __future__ import annotations

from pathlib import Path

from bench.gpu.harness import report
from bench.gpu.harness.goals import GOALS
from bench.gpu.harness.processes import PARTS


def render(folder: Path) -> str:
    """Renders the table of the records in `folder`."""
    records = {part.name: report.read(part.name, folder) for part in PARTS}
    lines = ["", f"{'part':14}{'seconds':>8}  status"]
    for name, record in records.items():
        if record:
            line = f"{name:14}{record.get('seconds', 0):8}  {record['status']}"
            if left_out := record.get("left_out"):
                line += f"; left out: {', '.join(left_out)}"
            lines.append(line)
    gpus = sorted({record["gpu"] for record in records.values() if "gpu" in record})
    lines += ["", f"The goals are an H200's; this is {', '.join(gpus) or 'nothing'}."]
    for goal in GOALS:
        figures = records[goal.part].get("figures", {})
        value, outcome = goal.outcome(figures)
        shown = "" if value is None else f"{value:,.5g}"
        lines.append(f"{goal.text:48} {shown:>10}  {goal.wanted:16} {outcome}")
    return "\n".join(lines)
