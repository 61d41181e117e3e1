"""`bench.worker.step_pairs` on a small model, and where the other checkout fails."""

from pathlib import Path

import pytest

from bench.worker import step_pairs
from bench.worker.step_pairs import THIS, compare, steps_of, take_turns

pytestmark = [pytest.mark.process, pytest.mark.kernels]
FLAGS = ["--shape", "qwen2-tiny"]


def test_two_checkouts_take_turns() -> None:
    with steps_of(THIS, FLAGS) as ours, steps_of(THIS, FLAGS) as theirs:
        pairs = take_turns(ours, theirs, 3)
    assert ours.wait() == theirs.wait() == 0
    figures = compare(pairs)
    assert list(figures) == list(pairs[0][0])
    for found in figures.values():
        assert 0 < found["low"] <= found["ratio"] <= found["high"]
        assert min(found["ms"], found["base_ms"]) > 0


def test_packages_are_those_of_the_checkout(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").write_text("raise SystemExit(7)")
    with (
        pytest.raises(RuntimeError, match="exit code 7"),
        steps_of(tmp_path, FLAGS),
    ):
        pass


def test_a_folder_that_is_no_checkout_is_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["step_pairs", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        step_pairs.main()
    *_, last = capsys.readouterr().err.splitlines()
    assert last.endswith(f"{tmp_path} is no checkout with bench/worker/cpu_step.py")


def test_a_ratio_below_one_means_that_this_checkout_is_faster() -> None:
    found = step_pairs.compare([({"step": 1.0}, {"step": 2.0}), ({"step": 1.1}, {"step": 2.2})])
    assert found["step"] == {"ms": 1.05, "base_ms": 2.1, "ratio": 0.5, "low": 0.5, "high": 0.5}
