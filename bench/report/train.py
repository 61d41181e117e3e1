"""Makes the tables of docs/train/figures.md from bench/results/train_*.json."""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.train.figures import COLUMNS, POWER_SGD, TOP_K, rows, seconds_to

Record = dict[str, Any]
_NOT_RECORDED = "Nothing has been recorded yet."


def train_synthetic_table(results: Path) -> Iterator[str]:
    """Yields a row a model and configuration."""
    record = _read(results, "train_synthetic")
    if record is None:
        yield _NOT_RECORDED
        return
    yield f"| model | {' | '.join(COLUMNS)} |"
    yield f"|---|{'---|' * len(COLUMNS)}"
    for model, figures in record["figures"]["models"].items():
        yield from (f"| {model} | {' | '.join(row)} |" for row in rows(figures))
    yield ""
    for model, figures in record["figures"]["models"].items():
        yield (
            f"- {model}: {figures['parameters'] / 1e6:.1f} million parameters, batches of "
            f"{figures['batch_size']} {figures['unit']} of size {figures['size']} a rank, "
            f"{figures['ranks']} ranks on {figures['hosts']} emulated hosts, links of "
            f"{figures['rate']}"
        )
    yield f"- {_note(record)}"


def train_picture(results: Path) -> Iterator[str]:
    """Yields the chart of the same figures, where there are any."""
    if _read(results, "train_synthetic") is None:
        yield _NOT_RECORDED
        return
    yield "![Share of the speed without communication](../images/train.svg)"


def train_links_table(results: Path) -> Iterator[str]:
    """Yields a row a link and configuration: its share of the speed without communication."""
    record = _read(results, "train_links")
    if record is None:
        yield _NOT_RECORDED
        return
    yield "| link | configuration | ms a step | of communication off | goal |"
    yield "|---|---|---|---|---|"
    for link in record["figures"]["links"]:
        for arm, (ratio, low, high) in link["of_off"].items():
            milliseconds = 1e3 * statistics.median(link["seconds"][arm])
            goal = "≥ 85%" if arm == TOP_K else ""
            yield (
                f"| {link['rate'] / 1e6:,.0f} Mbit/s | {arm} | {milliseconds:,.0f} | "
                f"{ratio:.0%} ({low:.0%}–{high:.0%}) | {goal} |"
            )
    figures = record["figures"]
    yield ""
    yield (
        f"- {figures['model']}, batches of {figures['batch_size']} a rank, {figures['hosts']} "
        f"emulated hosts with {figures['ranks_per_host']} ranks each"
    )
    yield f"- {_note(record)}"


def train_time_to_loss_table(results: Path) -> Iterator[str]:
    """Yields a row a link: seconds of TopK and PowerSGD until the loss."""
    record = _read(results, "train_time_to_loss")
    if record is None:
        yield _NOT_RECORDED
        return
    figures = record["figures"]
    yield f"| link | TopK, s to a loss of {figures['loss']} | PowerSGD rank 4, s | ratio | goal |"
    yield "|---|---|---|---|---|"
    for link in figures["links"]:
        ours, theirs = (
            seconds_to(figures["loss"], link["curves"][arm]) for arm in (TOP_K, POWER_SGD)
        )
        ratio = "–" if ours is None or theirs is None else f"{ours / theirs:.2f}"
        cells = ["not reached" if one is None else f"{one:.1f}" for one in (ours, theirs)]
        yield f"| {link['rate'] / 1e6:,.0f} Mbit/s | {' | '.join(cells)} | {ratio} | ≤ 0.8 |"
    yield ""
    yield f"- {_note(record)}"


def train_collectives_table(results: Path) -> Iterator[str]:
    """Yields a row a link, size and configuration."""
    record = _read(results, "train_collectives")
    if record is None:
        yield _NOT_RECORDED
        return
    yield "| link | bytes | configuration | ms | of gloo's speed | bytes a host, of flat | goal |"
    yield "|---|---|---|---|---|---|---|"
    for link, sizes in record["figures"]["links"].items():
        for size in sizes:
            for name, seconds in size["seconds"].items():
                ratio, low, high = size["speed"][name]
                cells = (
                    link,
                    f"{size['bytes']:,}",
                    name,
                    f"{1e3 * statistics.median(seconds):,.2f}",
                    f"{ratio:.2f}× ({low:.2f}–{high:.2f})",
                    _share(size["share"].get(name)),
                    _collective_goal(link, name),
                )
                yield f"| {' | '.join(cells)} |"
    yield ""
    yield f"- {_note(record)}"


def train_cost_model_table(results: Path) -> Iterator[str]:
    """Yields a row a link: what the cost model chose, beside the best fixed choice."""
    record = _read(results, "train_cost_model")
    if record is None:
        yield _NOT_RECORDED
        return
    figures = record["figures"]
    yield "| link | chosen | ms | fastest fixed choice | ms | ratio | goal |"
    yield "|---|---|---|---|---|---|---|"
    for link, found in figures["links"].items():
        ratio, low, high = found["ratio"]
        medians = found["median_ms"]
        yield (
            f"| {link} | {found['choice']} | {medians['auto']:.1f} | {found['best']} | "
            f"{medians[found['best']]:.1f} | {ratio:.2f} ({low:.2f}–{high:.2f}) | ≤ 1.05 |"
        )
    yield ""
    yield f"- A bucket of {figures['bytes']:,} bytes. {_note(record)}"


def train_host_cost_table(results: Path) -> Iterator[str]:
    """Yields a row a configuration: CPU time beside the transfer."""
    record = _read(results, "train_host_cost")
    if record is None:
        yield _NOT_RECORDED
        return
    figures = record["figures"]
    yield "| configuration | µs a bucket | goal | share of a step | goal |"
    yield "|---|---|---|---|---|"
    for name, found in figures["ddp"].items():
        yield (
            f"| DDP hook, {name} | {found['microseconds']:.0f} | ≤ 150 | {found['share']:.2%} | "
            "≤ 1% |"
        )
    yield f"| Horovod, a tensor | {figures['horovod']['microseconds']:.0f} | – | – | – |"
    yield ""
    yield f"- {_note(record)}"


_SPEED_GOALS: Mapping[tuple[str, str], str] = {
    ("200mbit", "2D"): "≥ 1.45×, ≤ 0.67",
    ("200mbit", "2D + float16"): "≥ 2.8×, ≤ 0.34",
    ("200mbit", "2D + top-k"): "≥ 10×, ≤ 1/110",
    ("200mbit", "2D + top-k, float16"): "≤ 1/170",
    ("1gbit", "2D"): "≥ 1.3×",
}


def _collective_goal(link: str, name: str) -> str:
    if link.startswith("one-host"):
        return "≥ 2×" if name == "2D" else ""
    return _SPEED_GOALS.get((link, name), "")


def _share(share: float | None) -> str:
    """A share of the flat ring's bytes; small ones as a fraction."""
    if share is None:
        return "–"
    return f"{share:.2f}" if share > 0.1 else f"1/{1 / share:.0f}"


def _note(record: Record) -> str:
    """Date, machine and command of a run."""
    machine = record["machine"]
    newest = next(reversed(machine["vector_sets"]), "unknown vector sets")
    return (
        f"{record['date']}, {machine['cpu']} with {machine['cores']} cores ({newest}), torch "
        f"{record['versions']['torch']}: `{record['command']}`"
    )


def _read(results: Path, name: str) -> Record | None:
    path = results / f"{name}.json"
    if not path.exists():
        return None
    record: Record = json.loads(path.read_text())
    return record


TABLES: Mapping[str, Callable[[Path], Iterator[str]]] = {
    "train_synthetic": train_synthetic_table,
    "train_picture": train_picture,
    "train_links": train_links_table,
    "train_time_to_loss": train_time_to_loss_table,
    "train_collectives": train_collectives_table,
    "train_cost_model": train_cost_model_table,
    "train_host_cost": train_host_cost_table,
}
