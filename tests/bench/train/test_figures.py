"""Figures, tables and the chart of the training benchmarks, from records of known values."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from bench.pictures.svg import SCHEMES
from bench.pictures.train_chart import PICTURE, RESULTS, chart
from bench.report.train import TABLES
from bench.train.figures import DDP, OFF, ONE_RANK, POWER_SGD, TOP_K, rows, seconds_to, summary

MACHINE = {"cpu": "Xeon", "cores": 2, "vector_sets": ["avx2", "avx512f"]}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """One record of each benchmark."""
    speeds = {ONE_RANK: [4.0, 4.0], OFF: [2.0, 2.0], DDP: [1.0, 1.0], TOP_K: [1.8, 1.8]}
    synthetic = {
        "model": "resnet50",
        "parameters": 25_557_032,
        "unit": "img",
        "batch_size": 16,
        "size": 64,
        "hosts": 2,
        "ranks": 4,
        "rate": "1gbit",
        "speeds": speeds,
    }
    link = {"share": 0.44, "rate": 5e8, "of_off": {TOP_K: [0.9, 0.88, 0.92]}}
    curves = {TOP_K: [[1.0, 2.0], [2.0, 1.0]], POWER_SGD: [[2.0, 2.0], [4.0, 1.0]]}
    size: dict[str, Any] = {
        "bytes": 4096,
        "seconds": {"gloo": [0.2], "flat": [0.1], "2D + TopK": [0.01]},
    }
    size["speed"] = {name: [2.0, 1.9, 2.1] for name in size["seconds"]}
    size["share"] = {"gloo": 1.0, "flat": 1.0, "2D + TopK": 1 / 117}
    found = {"choice": "2D", "best": "flat", "ratio": [1.01, 0.99, 1.03]}
    records: dict[str, dict[str, Any]] = {
        "synthetic": {"models": {"resnet50": synthetic}},
        "links": {
            "model": "resnet50",
            "batch_size": 32,
            "hosts": 2,
            "ranks_per_host": 2,
            "links": [{**link, "seconds": {TOP_K: [0.5, 0.5]}}],
        },
        "time_to_loss": {"loss": 1.5, "links": [{**link, "curves": curves}]},
        "collectives": {"links": {"200mbit": [size]}},
        "cost_model": {
            "bytes": 4096,
            "links": {"1gbit": {**found, "median_ms": {"auto": 10.1, "flat": 10.0}}},
        },
        "host_cost": {
            "ddp": {"2D": {"microseconds": 90.0, "share": 0.001, "buckets": 5}},
            "horovod": {"microseconds": 30.0, "tensors": 161},
        },
        "faults": {"link cut": {"ranks": 9, "p50_s": 6.737, "max_s": 8.9}},
    }
    for name, figures in records.items():
        record: dict[str, Any] = {
            "date": "2026-11-23",
            "command": f"python -m bench.train.{name} --save",
        }
        record |= {"machine": MACHINE, "versions": {"torch": "2.13"}, "figures": figures}
        file = "chaos_training" if name == "faults" else f"train_{name}"
        (tmp_path / f"{file}.json").write_text(json.dumps(record))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "row"),
    [
        (
            "synthetic",
            "| resnet50 | 2D + TopK | 1.80 | 0.00 | 7.20 | 0.90 (0.90–0.90) | 1.80 (1.80–1.80) "
            "| 0.45 |",
        ),
        ("links", "| 500 Mbit/s | 2D + TopK | 500 | 90% (88%–92%) | ≥ 85% |"),
        ("time_to_loss", "| 500 Mbit/s | 1.5 | 3.0 | 0.50 | ≤ 0.8 |"),
        (
            "collectives",
            "| 200mbit | 4,096 | 2D + TopK | 10.00 | 2.00× (1.90–2.10) | 1/117 | ≥ 10×, ≤ 1/110 |",
        ),
        ("cost_model", "| 1gbit | 2D | 10.1 | flat | 10.0 | 1.01 (0.99–1.03) | ≤ 1.05 |"),
        ("host_cost", "| DDP hook, 2D | 90 | ≤ 150 | 0.10% | ≤ 1% |"),
        ("faults", "| link cut | 6.74 | 8.90 | ≤ 10 |"),
    ],
)
def test_a_row_of_each_table(results: Path, name: str, row: str, tmp_path: Path) -> None:
    table = TABLES[f"train_{name}"]
    lines = list(table(results))
    assert row in lines
    origin = f"2026-11-23, Xeon with 2 cores (avx512f), torch 2.13: `python -m bench.train.{name} "
    assert lines[-1].startswith(f"- {origin}")
    columns = {line.count("|") for line in lines if line.startswith("|")}
    assert len(columns) == 1
    assert list(table(tmp_path / "empty")) == ["Nothing has been recorded yet."]


def test_a_loss_that_powersgd_never_reaches(results: Path) -> None:
    path = results / "train_time_to_loss.json"
    record = json.loads(path.read_text())
    (link,) = record["figures"]["links"]
    link["curves"][POWER_SGD] = [[3.0, 9.0]]
    path.write_text(json.dumps(record))
    lines = list(TABLES["train_time_to_loss"](results))
    assert "| 500 Mbit/s | 1.5 | more than 3.0 | less than 0.50 | ≤ 0.8 |" in lines


def test_long_notes_are_wrapped_between_commands(results: Path) -> None:
    path = results / "train_links.json"
    record = json.loads(path.read_text())
    record["command"] += " --model resnet50 --rounds 12 --shares 0.44"
    path.write_text(json.dumps(record))
    *_, first, last = TABLES["train_links"](results)
    assert first == "- 2026-11-23, Xeon with 2 cores (avx512f), torch 2.13:"
    assert (
        last == "  `python -m bench.train.links --save --model resnet50 --rounds 12 --shares 0.44`"
    )


def test_one_rank_is_compared_with_nothing(results: Path) -> None:
    figures = json.loads((results / "train_synthetic.json").read_text())["figures"]
    [alone, off, *_] = rows(figures["models"]["resnet50"])
    assert alone == (ONE_RANK, "4.00", "0.00", "4.00", "–", "–", "1.00")
    assert off[3:5] == ("8.00", "–")


def test_spread_is_that_of_horovods_benchmark() -> None:
    assert summary([1.0, 3.0]) == (2.0, 1.96)


@pytest.mark.parametrize(
    ("loss", "seconds"), [(3.0, 1.0), (2.5, 1.5), (2.0, 2.0), (1.0, 4.0), (0.5, None)]
)
def test_time_to_a_loss(loss: float, seconds: float | None) -> None:
    """Between two blocks by a straight line; the second block is worse than the first."""
    assert seconds_to(loss, [(1.0, 3.0), (2.0, 2.0), (3.0, 2.2), (4.0, 1.0)]) == seconds


def test_the_chart_has_a_bar_for_each_configuration(results: Path) -> None:
    drawn = chart(results, SCHEMES[0])
    assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"
    assert ">90% (90%–90%)</text>" in drawn
    assert ">50% (50%–50%)</text>" in drawn
    assert ONE_RANK not in drawn


def test_the_committed_chart_shows_the_recorded_results() -> None:
    """Else: python -m bench.pictures.train_chart."""
    has_results = (RESULTS / "train_synthetic.json").exists()
    assert PICTURE.exists() == has_results
    assert not has_results or PICTURE.read_text() == chart(RESULTS, SCHEMES[0])
