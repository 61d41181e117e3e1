"""Makes the tables of docs/train/figures.md from bench/results/train_*.json."""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.report.wrapping import wrapped
from bench.train.figures import COLUMNS, POWER_SGD, TOP_K, rows, seconds_to

Record = dict[str, Any]
Lines = Callable[[Record], Iterator[str]]
_NOT_RECORDED = "Nothing has been recorded yet."


def _no_notes(figures: Record) -> Iterator[str]:
    return iter(())


def _recorded(
    result: str, lines: Lines, notes: Lines = _no_notes
) -> Callable[[Path], Iterator[str]]:
    """A table of one result's figures, above its notes and how it was measured."""

    def table(results: Path) -> Iterator[str]:
        path = results / f"{result}.json"
        if not path.exists():
            yield _NOT_RECORDED
            return
        record: Record = json.loads(path.read_text())
        yield from lines(record["figures"])
        yield ""
        for note in (*notes(record["figures"]), _origin(record)):
            yield from wrapped("- ", note)

    return table


def _synthetic(figures: Record) -> Iterator[str]:
    """Yields a row a model and configuration."""
    yield f"| model | {' | '.join(COLUMNS)} |"
    yield f"|---|{'---|' * len(COLUMNS)}"
    for model, found in figures["models"].items():
        yield from (f"| {model} | {' | '.join(row)} |" for row in rows(found))


def _synthetic_notes(figures: Record) -> Iterator[str]:
    for model, found in figures["models"].items():
        yield (
            f"{model}: {found['parameters'] / 1e6:.1f} million parameters, batches of "
            f"{found['batch_size']} {found['unit']} of size {found['size']} a rank, "
            f"{found['ranks']} ranks on {found['hosts']} emulated hosts, links of {found['rate']}"
        )


def _picture(results: Path) -> Iterator[str]:
    """Yields the chart of the same figures, where there are any."""
    is_recorded = (results / "train_synthetic.json").exists()
    picture = "![Share of the speed without communication](../images/train.svg)"
    yield picture if is_recorded else _NOT_RECORDED


def _links(figures: Record) -> Iterator[str]:
    """Yields a row a link and configuration: its share of the speed without communication."""
    yield "| link | configuration | ms a step | of communication off | goal |"
    yield "|---|---|---|---|---|"
    for link in figures["links"]:
        for arm, (ratio, low, high) in link["of_off"].items():
            milliseconds = 1e3 * statistics.median(link["seconds"][arm])
            goal = "≥ 85%" if arm == TOP_K else ""
            yield (
                f"| {link['rate'] / 1e6:,.0f} Mbit/s | {arm} | {milliseconds:,.0f} | "
                f"{ratio:.0%} ({low:.0%}–{high:.0%}) | {goal} |"
            )


def _links_notes(figures: Record) -> Iterator[str]:
    yield (
        f"{figures['model']}, batches of {figures['batch_size']} a rank, {figures['hosts']} "
        f"emulated hosts with {figures['ranks_per_host']} ranks each"
    )


def _time_to_loss(figures: Record) -> Iterator[str]:
    """Yields a row a link: seconds of TopK and PowerSGD until the loss."""
    loss = figures["loss"]
    yield f"| link | TopK, s to a loss of {loss} | PowerSGD rank 4, s | ratio | goal |"
    yield "|---|---|---|---|---|"
    for link in figures["links"]:
        curves = [link["curves"][arm] for arm in (TOP_K, POWER_SGD)]
        ours, theirs = (seconds_to(loss, curve) for curve in curves)
        cells = [
            f"more than {curve[-1][0]:.1f}" if seconds is None else f"{seconds:.1f}"
            for seconds, curve in zip((ours, theirs), curves, strict=True)
        ]
        if ours is None:
            ratio = "–"
        elif theirs is None:
            ratio = f"less than {ours / curves[1][-1][0]:.2f}"
        else:
            ratio = f"{ours / theirs:.2f}"
        yield f"| {link['rate'] / 1e6:,.0f} Mbit/s | {' | '.join(cells)} | {ratio} | ≤ 0.8 |"


def _collectives(figures: Record) -> Iterator[str]:
    """Yields a row a link, size and configuration."""
    yield "| link | bytes | configuration | ms | of gloo's speed | bytes a host, of flat | goal |"
    yield "|---|---|---|---|---|---|---|"
    for link, sizes in figures["links"].items():
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


def _cost_model(figures: Record) -> Iterator[str]:
    """Yields a row a link: what the cost model chose, beside the best fixed choice."""
    yield "| link | chosen | ms | fastest fixed choice | ms | ratio | goal |"
    yield "|---|---|---|---|---|---|---|"
    for link, found in figures["links"].items():
        ratio, low, high = found["ratio"]
        medians = found["median_ms"]
        yield (
            f"| {link} | {found['choice']} | {medians['auto']:.1f} | {found['best']} | "
            f"{medians[found['best']]:.1f} | {ratio:.2f} ({low:.2f}–{high:.2f}) | ≤ 1.05 |"
        )


def _cost_model_notes(figures: Record) -> Iterator[str]:
    yield f"a bucket of {figures['bytes']:,} bytes"


def _host_cost(figures: Record) -> Iterator[str]:
    """Yields a row a configuration: CPU time beside the transfer."""
    yield "| configuration | µs a bucket | goal | share of a step | goal |"
    yield "|---|---|---|---|---|"
    for name, found in figures["ddp"].items():
        yield (
            f"| DDP hook, {name} | {found['microseconds']:.0f} | ≤ 150 | {found['share']:.2%} | "
            "≤ 1% |"
        )
    yield f"| Horovod, a tensor | {figures['horovod']['microseconds']:.0f} | – | – | – |"


def _faults(figures: Record) -> Iterator[str]:
    """Yields a row a fault: when the ranks that are left raise."""
    yield "| fault | seconds, median | greatest | goal |"
    yield "|---|---|---|---|"
    for fault, found in figures.items():
        goal = "–" if fault.startswith("elastic") else "≤ 10"
        yield f"| {fault} | {found['p50_s']:.2f} | {found['max_s']:.2f} | {goal} |"


_SPEED_GOALS: Mapping[tuple[str, str], str] = {
    ("200mbit", "2D"): "≥ 1.45×, ≤ 0.67",
    ("200mbit", "2D + fp16"): "≥ 2.8×, ≤ 0.34",
    ("200mbit", "2D + TopK"): "≥ 10×, ≤ 1/110",
    ("200mbit", "2D + TopK, fp16"): "≤ 1/170",
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


def _origin(record: Record) -> str:
    """Date, machine and command of a run."""
    machine = record["machine"]
    newest = next(reversed(machine["vector_sets"]), "unknown vector sets")
    return (
        f"{record['date']}, {machine['cpu']} with {machine['cores']} cores ({newest}), torch "
        f"{record['versions']['torch']}: `{record['command']}`"
    )


TABLES: Mapping[str, Callable[[Path], Iterator[str]]] = {
    "train_synthetic": _recorded("train_synthetic", _synthetic, _synthetic_notes),
    "train_picture": _picture,
    "train_links": _recorded("train_links", _links, _links_notes),
    "train_time_to_loss": _recorded("train_time_to_loss", _time_to_loss),
    "train_collectives": _recorded("train_collectives", _collectives),
    "train_cost_model": _recorded("train_cost_model", _cost_model, _cost_model_notes),
    "train_host_cost": _recorded("train_host_cost", _host_cost),
    "train_faults": _recorded("chaos_training", _faults),
}
