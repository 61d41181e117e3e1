import json
from pathlib import Path

import pytest

from bench import record


def test_a_result_is_named_by_the_instruction_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setenv("TACO_CPU_ISA", "avx2")
    path = record.save_by_isa("cpu_matmul", {"us": 3.0})
    assert path == tmp_path / "cpu_matmul.avx2.json"
    saved = record.by_isa(tmp_path, "cpu_matmul")
    assert {isa: one["figures"] for isa, one in saved.items()} == {"avx2": {"us": 3.0}}


def test_results_are_read_from_the_best_instruction_set_on(tmp_path: Path) -> None:
    for isa in ("avx2", "amx", "avx512_bf16"):
        (tmp_path / f"one.{isa}.json").write_text(json.dumps({"of": isa}))
    (tmp_path / "other.json").write_text(json.dumps({"of": "any"}))
    assert list(record.by_isa(tmp_path, "one")) == ["amx", "avx512_bf16", "avx2"]
    assert record.read_best(tmp_path, "one") == {"of": "amx"}
    assert record.read_best(tmp_path, "other") == {"of": "any"}
    with pytest.raises(FileNotFoundError):
        record.read_best(tmp_path, "none")
