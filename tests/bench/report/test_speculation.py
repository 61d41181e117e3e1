import json
from pathlib import Path
from typing import Any

import pytest

from bench.report.speculation import speculation_table, write_plot


@pytest.fixture
def results(tmp_path: Path) -> Path:
    figures = {
        "speedup": 1.63,
        "interval": [1.24, 2.13],
        "decode_speedup": 1.82,
        "decode_interval": [1.5, 2.2],
        "plain_tokens_per_s": 374.4,
        "tokens_per_s": 594.8,
        "accepted_per_step": 2.75,
        "verified_per_step": 4.281,
        "acceptance_rate": 0.642,
    }
    record: dict[str, Any] = {
        "date": "2026-11-21",
        "command": "python -m bench.engine.speculation excerpts",
        "machine": {"cpu": "AMD EPYC", "cores": 2, "vector_sets": ["avx2"]},
        "figures": {"excerpts": {"lookahead": {"1": figures, "8": figures}}},
    }
    (tmp_path / "speculation_demo.avx2.json").write_text(json.dumps(record))
    return tmp_path


def test_a_row_for_each_batch_size(results: Path) -> None:
    lines = list(speculation_table(results))
    assert lines[2] == (
        "| AVX2 | excerpts | lookahead | 1 | 374 | 595 | 1.63 (1.24–2.13) | 1.82 (1.50–2.20) "
        "| 2.75 | 4.28 | 64% |"
    )
    assert lines[3].startswith("| AVX2 | excerpts | lookahead | 8 |")
    assert lines[-1] == (
        "On AMD EPYC with 2 cores (avx2), 2026-11-21: "
        "`python -m bench.engine.speculation excerpts`."
    )


def test_the_best_instruction_set_comes_first(results: Path) -> None:
    other = (results / "speculation_demo.avx2.json").read_text()
    (results / "speculation_demo.amx.json").write_text(other)
    sets = [line.split(" | ")[0] for line in speculation_table(results) if "excerpts |" in line]
    assert sets == ["| AMX", "| AMX", "| AVX2", "| AVX2"]


def test_without_results_the_table_says_so(tmp_path: Path) -> None:
    assert list(speculation_table(tmp_path)) == ["Nothing has been recorded yet."]


@pytest.mark.slow
def test_the_plot_is_the_same_for_the_same_figures(results: Path, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("one.svg", "two.svg")]
    for path in paths:
        write_plot(results, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].read_bytes().startswith(b"<?xml")
