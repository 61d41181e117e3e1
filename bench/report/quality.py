"""Makes the tables of what number formats cost in quality, from bench/results/*.json."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[Mapping[str, Any]]


def perplexity_table(results: Path) -> Iterator[str]:
    """Yields each storage type of weights and KV, relative to the first, without and with outliers
    planted.
    """
    rows = _figures(results, "perplexity")["engine"]
    yield (
        "| weights, KV | perplexity | | tokens that differ | with outliers | | tokens that differ |"
    )
    yield "|---|---|---|---|---|---|---|"
    for name in dict.fromkeys(row["name"] for row in rows):
        yield f"| {name} | {_quality(rows, name, 'none')} | {_quality(rows, name, 'compensated')} |"


def int8_choices_table(results: Path) -> Iterator[str]:
    """Yields each way to round a model to int8: quality on text, and of random models' logits."""
    figures = _figures(results, "perplexity")
    rows, errors = figures["choices"], figures["logits"]
    models = list(dict.fromkeys(row["model"] for row in errors))
    head = ["rounded to int8", "perplexity", "", "tokens that differ"]
    head += ["with outliers", "", "tokens that differ"]
    head += [f"logits, {model}: none / outliers" for model in models]
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for name in dict.fromkeys(row["name"] for row in errors):
        cells = [name, _quality(rows, name, "none"), _quality(rows, name, "compensated")]
        for model in models:
            found = {
                row["planting"]: row["logit_error"]
                for row in errors
                if (row["model"], row["name"]) == (model, name)
            }
            cells.append(f"{found['none']:.2%} / {found['bare']:.2%}")
        yield f"| {' | '.join(cells)} |"


def formats_quality_table(results: Path) -> Iterator[str]:
    """Yields each checkpoint format: its exact values and what the engine serves of them, relative
    to float32, without and with outliers planted.
    """
    rows = _figures(results, "formats_quality")["rows"]
    yield (
        "| checkpoint | perplexity | | tokens that differ | with outliers | | tokens that differ |"
    )
    yield "|---|---|---|---|---|---|---|"
    for name, model in sorted(
        dict.fromkeys((row["name"], row["model"]) for row in rows),
        key=lambda one: one[1] == "exact",
    ):
        is_served = model != "exact"  # else its tokens are not compared
        cells = [_quality(rows, name, one, is_served) for one in ("none", "compensated")]
        yield f"| {name}{'' if is_served else ', exact'} | {' | '.join(cells)} |"


def _quality(rows: Rows, name: str, planting: str, counts_tokens: bool = True) -> str:
    """Cells of one row of a model: perplexity, relative to float32, and differing tokens."""
    same = {row["name"]: row for row in rows if row["planting"] == planting}
    row = same[name]
    perplexity, exact = row["perplexity"], same["float32"]["perplexity"]
    differing = f"{row['differing']:.2%}" if counts_tokens else "–"
    return f"{perplexity:.2f} | {perplexity / exact - 1:+.2%} | {differing}"


def _figures(results: Path, name: str) -> Mapping[str, Any]:
    figures: Mapping[str, Any] = json.loads((results / f"{name}.json").read_text())["figures"]
    return figures
