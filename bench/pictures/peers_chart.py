"""Draws the README's chart of TACO beside other engines from bench/results/peers_*.json.

    python -m bench.pictures.peers_chart      # writes docs/images/peers-{light,dark}.svg

A bar is the median of the runs, the line across its end reaches from the lowest to the highest run.
The ratio is TACO / peer over pairs of neighbouring runs, with its 95% interval.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.goals import best
from bench.pictures.svg import SANS, SCHEMES, Scheme, document, element, text
from bench.record import INSTRUCTION_SETS, by_isa, read_best, widest_instructions

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
IMAGES = ROOT / "docs" / "images"

_WIDTH, _PANEL, _MARGIN = 960, 440, 24
_TOP, _BAR, _BAR_GAP, _GROUP_GAP = 78, 15, 6, 22
_LABELS = 122  # pixels for the engines' names, left of the bars
_VALUES = 66  # pixels for the figures, right of the longest bar

_NAMES = {
    "taco": "TACO",
    "openvino": "OpenVINO",
    "vllm": "vLLM",
    "llama": "llama.cpp",
}
_WEIGHTS = {8: "int8", 16: "bf16", 32: "fp32"}


@dataclass(frozen=True, slots=True)
class Group:
    """Engines on one workload.

    Attributes:
        title: of the group of bars.
        result: name of the file, without its ending.
        workload, figure: where the values are in that file.
        engines: the ratio is the first one's figure over that of the best of the others.
    """

    title: str
    result: str
    workload: str
    figure: str
    engines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One half of the chart; all its bars have one scale."""

    title: str
    groups: tuple[Group, ...]


_BF16, _INT8 = ("taco", "openvino", "vllm"), ("taco-int8", "openvino-int8")
PANELS = (
    Panel(
        "Milliseconds, one stream (less is better)",
        (
            Group("a token, bf16 weights", "peers_latency", "single", "tpot_ms", _BF16),
            Group("a token, int8 weights", "peers_latency", "single", "tpot_ms", _INT8),
            Group("128 tokens to the first one, bf16", "peers_latency", "single", "ttft_ms", _BF16),
            Group("the same, int8", "peers_latency", "single", "ttft_ms", _INT8),
        ),
    ),
    Panel(
        "Tokens per second, many requests (more is better)",
        (
            Group("32 at once, bf16", "peers_throughput", "batch", "tokens_per_s", _BF16),
            Group("32 at once, int8", "peers_throughput", "batch", "tokens_per_s", _INT8),
            Group("64 of mixed lengths, bf16", "peers_throughput", "mixed", "tokens_per_s", _BF16),
            Group("the same, int8", "peers_throughput", "mixed", "tokens_per_s", _INT8),
        ),
    ),
)

Record = dict[str, Any]


def main() -> None:
    for scheme in SCHEMES:
        path = IMAGES / f"peers-{scheme.name}.svg"
        path.write_text(chart(RESULTS, scheme))
        print(f"written: {path}")


def chart(results: Path, scheme: Scheme) -> str:
    """The chart as SVG, of the best instruction set with which all results were recorded.

    Raises:
        ValueError: the recorded runs differ in machine, model or threads.
    """
    records = records_of(results)
    bodies, bottom = [], 0.0
    for number, panel in enumerate(PANELS):
        parts, panel_bottom = _panel(panel, records, scheme)
        left = _MARGIN + number * (_PANEL + _MARGIN + 8)
        bodies.append(element("g", "".join(parts), transform=f"translate({left} 0)"))
        bottom = max(bottom, panel_bottom)
    height = round(bottom) + 56
    notes = [
        text(_MARGIN, height - 38 + 18 * line, note, font_size=12, fill=scheme.muted)
        for line, note in enumerate(_notes(list(records.values())))
    ]
    return document(
        _WIDTH,
        height,
        "Time per token and tokens per second of TACO beside OpenVINO GenAI and vLLM on a CPU",
        element("rect", width=_WIDTH, height=height, rx=8, fill=scheme.background),
        text(_MARGIN, 32, "TACO beside other engines on a CPU", font_size=18, font_weight=600),
        *bodies,
        *notes,
        font_family=SANS,
        fill=scheme.text,
    )


def records_of(results: Path) -> dict[str, Record]:
    """The chart's records by name."""
    names = {group.result for panel in PANELS for group in panel.groups}
    recorded = {name: by_isa(results, name) for name in names}
    for isa in INSTRUCTION_SETS:
        if all(isa in of_isa for of_isa in recorded.values()):
            return {name: of_isa[isa] for name, of_isa in recorded.items()}
    return {name: read_best(results, name) for name in names}


def _panel(panel: Panel, records: Record, scheme: Scheme) -> tuple[list[str], float]:
    """The panel's elements, and the y at which it ends."""
    values = {group: _values(records[group.result], group) for group in panel.groups}
    longest = max(max(runs) for group in values.values() for runs in group.values())
    scale = (_PANEL - _LABELS - _VALUES) / longest
    parts = [text(0, _TOP - 18, panel.title, font_size=13, font_weight=600)]
    y = float(_TOP)
    for group in panel.groups:
        record = records[group.result]
        y += 12
        parts.append(text(0, y, group.title, font_size=12, fill=scheme.muted))
        parts.append(
            text(_PANEL, y, _ratio(record, group), font_size=12, text_anchor="end", font_weight=600)
        )
        y += 8
        for engine, runs in values[group].items():
            median = record["figures"]["workloads"][group.workload]["figures"][group.figure][
                "medians"
            ][engine]
            bits = record["figures"]["engines"][engine]["weight_bits"]
            parts += _bar(y, _label(engine, bits), runs, median, scale, scheme)
            y += _BAR + _BAR_GAP
        y += _GROUP_GAP - _BAR_GAP
    return parts, y


def _bar(
    y: float, label: str, runs: Sequence[float], median: float, scale: float, scheme: Scheme
) -> Iterator[str]:
    is_ours = label.startswith("TACO")
    low, high = _LABELS + min(runs) * scale, _LABELS + max(runs) * scale
    middle = y + _BAR / 2
    yield text(
        _LABELS - 8,
        middle + 4,
        label,
        font_size=12,
        text_anchor="end",
        font_weight=600 if is_ours else 400,
    )
    yield element(
        "rect",
        x=_LABELS,
        y=y,
        width=median * scale,
        height=_BAR,
        rx=2,
        fill=scheme.ours if is_ours else scheme.theirs,
    )
    whisker = f"M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8"
    yield element("path", d=whisker, stroke=scheme.text, stroke_width=1.5, fill="none")
    yield text(
        max(high, _LABELS + median * scale) + 8,
        middle + 4,
        f"{median:,.1f}" if median < 100 else f"{median:,.0f}",
        font_size=12,
        font_weight=600 if is_ours else 400,
    )


def _values(record: Record, group: Group) -> dict[str, list[float]]:
    measured = record["figures"]["workloads"][group.workload]["figures"][group.figure]["values"]
    return {engine: measured[engine] for engine in group.engines}


def _ratio(record: Record, group: Group) -> str:
    figure = record["figures"]["workloads"][group.workload]["figures"][group.figure]
    ours, *others = group.engines
    ratio, low, high = figure["ratios"][ours][best(group.figure, figure["medians"], others)]
    return f"{ratio:.2f}× ({low:.2f}–{high:.2f})"


def _label(engine: str, bits: int) -> str:
    return f"{_NAMES[engine.split('-')[0]]} {_WEIGHTS[bits]}"


def _notes(records: Sequence[Record]) -> tuple[str, str]:
    """How the values were made."""
    machines = {
        (
            record["machine"]["cpu"],
            record["machine"]["cores"],
            widest_instructions(record["machine"]),
            record["figures"]["model"],
            record["figures"]["threads"],
        )
        for record in records
    }
    if len(machines) != 1:
        raise ValueError(f"the runs are not of one machine and model: {sorted(machines)}")
    [(cpu, cores, sets, model, threads)] = machines
    dates = sorted({record["date"] for record in records})
    pairs = sorted({record["figures"]["pairs"] for record in records})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    name = model.replace("qwen", "Qwen").replace("b", "B")
    return (
        f"{when}, {cpu}, {threads} threads of {cores} cores ({sets}) of a shared machine, "
        f"shape of {name} with random weights. No GPU.",
        f"Bar: median of {pairs[0]} to {pairs[-1]} runs. Line: lowest to highest run. "
        "Bold ratio: TACO / best peer, 95% interval of paired runs. python -m bench.peers.compare",
    )


if __name__ == "__main__":
    main()
