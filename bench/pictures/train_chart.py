"""Draws docs/images/train.svg from bench/results/train_synthetic.json.

    python -m bench.pictures.train_chart

A bar is the speed over that of the same ranks with communication off. The line across its end is
the 95% confidence interval of adjacent iterations.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.interval import Interval, ratio_interval
from bench.pictures.svg import SANS, SCHEMES, Scheme, document, element, text
from bench.train.figures import AUTO, FLOAT16, OFF, ONE_RANK, TOP_K, TWO_LEVEL

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
PICTURE = ROOT / "docs" / "images" / "train.svg"

_OURS = (TWO_LEVEL, FLOAT16, TOP_K, AUTO)
_WIDTH, _MARGIN, _LABELS, _VALUES = 760, 24, 150, 130
_TOP, _BAR, _GAP, _GROUP_GAP = 64, 15, 6, 26
_SCALE = _WIDTH - 2 * _MARGIN - _LABELS - _VALUES  # pixels of 100%


def main() -> None:
    if not (RESULTS / "train_synthetic.json").exists():
        sys.exit("train_chart: no results; run python -m bench.train.synthetic --save")
    PICTURE.write_text(chart(RESULTS, SCHEMES[0]))
    print(f"written: {PICTURE}")


def chart(results: Path, scheme: Scheme) -> str:
    """The chart as SVG."""
    record = json.loads((results / "train_synthetic.json").read_text())
    parts, y = [], float(_TOP)
    for model, figures in record["figures"]["models"].items():
        title = (
            f"{model}: {figures['ranks']} ranks on {figures['hosts']} hosts, "
            f"{figures['rate']} links"
        )
        parts.append(text(_MARGIN, y + 12, title, font_size=13, font_weight=600))
        y += 22
        for arm, found in _shares(figures["speeds"]):
            parts += _bar(y, arm, found, scheme)
            y += _BAR + _GAP
        y += _GROUP_GAP - _GAP
    machine = record["machine"]
    note = (
        f"{record['date']}, {machine['cpu']}, {machine['cores']} cores "
        f"({', '.join(machine['vector_sets']).upper()}). python -m bench.train.synthetic"
    )
    height = round(y) + 24
    title = "Training speed as a share of the same ranks with communication off"
    return document(
        _WIDTH,
        height,
        title,
        element("rect", width=_WIDTH, height=height, rx=8, fill=scheme.background),
        text(_MARGIN, 32, title, font_size=16, font_weight=600),
        *parts,
        text(_MARGIN, height - 16, note, font_size=11, fill=scheme.muted),
        font_family=SANS,
        fill=scheme.text,
    )


def _shares(speeds: Mapping[str, Any]) -> Iterator[tuple[str, Interval]]:
    for arm, values in speeds.items():
        if arm not in (ONE_RANK, OFF):
            yield arm, ratio_interval(values, speeds[OFF])


def _bar(y: float, arm: str, found: Interval, scheme: Scheme) -> Iterator[str]:
    left, middle = _MARGIN + _LABELS, y + _BAR / 2
    is_ours = arm in _OURS
    yield text(
        left - 8,
        middle + 4,
        arm,
        font_size=12,
        text_anchor="end",
        font_weight=600 if is_ours else 400,
    )
    yield element(
        "rect",
        x=left,
        y=y,
        width=min(found.ratio, 1.1) * _SCALE,
        height=_BAR,
        rx=2,
        fill=scheme.ours if is_ours else scheme.theirs,
    )
    low, high = (left + min(one, 1.1) * _SCALE for one in (found.low, found.high))
    whisker = f"M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8"
    yield element("path", d=whisker, stroke=scheme.text, stroke_width=1.5, fill="none")
    label = f"{found.ratio:.0%} ({found.low:.0%}–{found.high:.0%})"
    end = max(high, left + min(found.ratio, 1.1) * _SCALE)
    yield text(end + 8, middle + 4, label, font_size=12, font_weight=600 if is_ours else 400)


if __name__ == "__main__":
    main()
