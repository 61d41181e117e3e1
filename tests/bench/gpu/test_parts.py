"""A GPU run: failing parts, time limits, and the final table."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from packaging.requirements import Requirement

from bench.gpu.harness import processes, report, requirements, table
from bench.gpu.harness.processes import PARTS, Part
from support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
RUN = ROOT / "bench" / "gpu" / "run.sh"


@pytest.fixture(autouse=True)
def _parts_find_their_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def run(code: str, folder: Path, limit: float = 60.0) -> str:
    return processes.run("machine", [sys.executable, "-c", code], limit, folder)


def test_every_part_is_a_module() -> None:
    for part in PARTS:
        assert (ROOT / "bench/gpu/parts" / f"{part.name}.py").exists()


def test_a_run_writes_at_most_8_files() -> None:
    for call in range(1, processes.NUM_CALLS + 1):
        assert len(processes.choose([], call)) <= 8


def test_parts_are_in_run_order() -> None:
    assert [part.name for part in processes.choose(["worker", "machine"])] == ["machine", "worker"]
    by_call = [part for call in (1, 2, 3) for part in processes.choose([], call)]
    assert processes.choose([]) == list(PARTS) == by_call
    assert processes.choose(["peers"], 1) == processes.choose(["peers"])  # a name wins over a call
    with pytest.raises(ValueError, match="no part gpus; there are machine, "):
        processes.choose(["gpus"])


def test_unused_time_goes_to_later_parts() -> None:
    chosen = [Part("a", 1, ""), Part("b", 2, ""), Part("c", 1, "")]
    elapsed: list[float] = []
    found = []
    allowed = processes.limits(chosen, 400, elapsed)
    for seconds in (0.0, 20.0, 330.0):
        elapsed.append(seconds)
        found.append(next(allowed))
    assert found == [100, 280, 70]


def test_the_error_of_a_failed_part_is_kept(tmp_path: Path) -> None:
    write(tmp_path, "machine", {"figure": "of an earlier run"})
    assert run("raise SystemExit('no such thing')", tmp_path) == "failed: exit 1"
    assert report.read("machine", tmp_path) == {
        "part": "machine",
        "figures": {},
        "status": "failed: exit 1",
        "error": "no such thing\n",
    }


def test_a_part_that_crashes_keeps_its_figures(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from bench.gpu.harness.report import Report
part = Report("machine", Path({str(tmp_path)!r}), 60, "a GPU")
part.add("first", {{"us": 7}})
os.kill(os.getpid(), signal.SIGSEGV)
"""
    assert run(code, tmp_path) == "failed: SIGSEGV"
    record = report.read("machine", tmp_path)
    assert record["figures"] == {"first": {"us": 7}}
    assert record["status"] == "failed: SIGSEGV"
    assert record["gpu"] == "a GPU"
    assert {"date", "command", "machine", "versions"} < record.keys()


def test_a_hanging_part_is_killed_with_its_children(tmp_path: Path) -> None:
    code = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
child.wait()
"""
    assert run(code, tmp_path, limit=3.0) == "killed after 3 s"
    if (child := tmp_path / "child").exists():  # on a busy machine it may have come no further
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(int(child.read_text())).wait(timeout=PATIENCE_SECONDS)


def test_left_out_figures_have_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = report.Report("machine", tmp_path, 5.0, "a GPU")
    assert part.has_time("short", 1.0)
    assert not part.has_time("long", 100.0)
    part.leave_out("other", RuntimeError("no such kernel\nand more"))
    part.close()
    record = report.read("machine", tmp_path)
    assert record["status"] == report.DONE
    assert record["left_out"]["long"].startswith("no time: ")
    assert record["left_out"]["other"] == "no such kernel"
    assert "left out: no such kernel" in capsys.readouterr().out


def write(folder: Path, part: str, figures: dict[str, Any]) -> None:
    content = {"part": part, "status": "done", "seconds": 3, "gpu": "NVIDIA H200"}
    (folder / f"{part}.json").write_text(json.dumps(content | {"figures": figures}))


def outcome(folder: Path, text: str) -> str:
    """The value, the goal and what came of it, of the goal whose text begins so."""
    (line,) = (line for line in table.render(folder).splitlines() if line.startswith(text))
    return " ".join(line[48:].split())


def test_goals_are_evaluated_from_the_records(tmp_path: Path) -> None:
    attention = {
        "heads": {"query": 32},
        "decode 1x1024": {  # too little KV to be bound by reading it
            "copy_share": 0.3,
            "kv_mb": 4.2,
            "right": True,
            "us": 9.0,
            "sdpa_flash": {"us": 12.0},
            "xformers": {"reason": "not installed"},
        },
        "flashinfer: decode 1x1024": {"us": 8.0},
        "decode 128x1024": {"copy_share": 0.84, "kv_mb": 536.9, "right": True},
        "decode 32x8192": {"copy_share": 0.9, "kv_mb": 1073.7, "right": False},
        "decode 127x1024 + decode 1x32768": {"copy_share": 0.2, "kv_mb": 667.0, "right": True},
        "decode 32x8192, fp8 KV": {"copy_share": 0.6, "kv_mb": 536.9, "right": True},
        "prefill 1x8192": {"copy_share": 0.1, "tflops": 451.2, "right": True},
    }
    write(tmp_path, "attention", attention)
    write(
        tmp_path,
        "worker",
        {
            "start": {"made_seconds": 9.5, "first_step_seconds": 1.25},
            "decode 1x1024": {"itl_ms": 4.5},
            "decode 1x32768": {"itl_ms": 5.6},
            "prefill 1024 by 1024": {"tok_per_s": 41_000},
            "prefill 8192 by 2048": {"tok_per_s": 37_900},
        },
    )
    write(
        tmp_path,
        "speculation",
        {
            "tokens with eagle, float32": {"ran": 12, "failed": 1},
            "verify 1x9": {"ratio": 1.12},
            "replay, batch 1": {"right": True},
        },
    )
    assert outcome(tmp_path, "answers that drafts change") == "1 ≤ 0 missed"
    assert outcome(tmp_path, "answers with drafts") == "1 ≥ 1 met"
    assert outcome(tmp_path, "8 drafts verified") == "1.12 ≤ 1.15 times met"
    assert outcome(tmp_path, "attention outputs") == "0.83333 ≥ 1 missed"
    assert outcome(tmp_path, "decode attention, of") == "0.84 ≥ 0.85 missed"
    assert outcome(tmp_path, "decode attention below") == "1.125 ≤ 1.1 times missed"
    assert outcome(tmp_path, "prefill attention") == "451.2 ≥ 420 TFLOP/s met"
    assert outcome(tmp_path, "ITL less") == "4.6006 ≤ 4.5 ms missed"
    assert outcome(tmp_path, "prefill  ") == "37,900 ≥ 38,000 tok/s missed"
    assert outcome(tmp_path, "first token") == "10.75 ≤ 15 s met"
    assert outcome(tmp_path, "device idle, steps") == "≤ 0.03 not measured"
    assert outcome(tmp_path, "tests that fail") == "≤ 0 not measured"


def test_failing_tests_are_counted_over_suites(tmp_path: Path) -> None:
    suites = {"kernels": {"ran": 40, "failed": 2}, "worker": {"ran": 3, "failed": 1}}
    write(tmp_path, "correctness", suites)
    assert outcome(tmp_path, "tests that fail") == "3 ≤ 0 missed"


@pytest.mark.parametrize(("failed", "said"), [(0, "≤ 0 not measured"), (1, "1 ≤ 0 missed")])
def test_a_suite_that_was_cut_short_proves_no_success(
    failed: int, said: str, tmp_path: Path
) -> None:
    suites = {"tokens": {"ran": 6, "failed": 0}}
    suites["kernels"] = {"ran": 40, "failed": failed, "in_time": False}
    write(tmp_path, "correctness", suites)
    assert outcome(tmp_path, "tests that fail") == said


def test_missing_packages_come_with_a_download_command() -> None:
    needed = [Requirement("protobuf>=7"), Requirement("no-such-package>=2")]
    line = requirements.advice(needed)
    assert "\n" not in line
    assert "pip download --no-deps" in line
    pins = (requirements.ROOT / "constraints.txt").read_text().split()
    (pinned,) = (pin for pin in pins if pin.startswith("protobuf=="))
    assert line.endswith(f"-d .whl {pinned} 'no-such-package>=2'")


def test_a_gpu_run_does_not_ask_for_this_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra of workers names the extra of the admin listener."""
    monkeypatch.setattr(requirements, "_is_installed", lambda _: False)
    names = [needed.name for needed in requirements.missing()]
    assert "torch" in names
    assert "taco-llm" not in names


def test_this_environment_has_the_required_packages() -> None:
    assert requirements.missing() == []


def test_a_run_without_a_gpu_ends_with_one_line(tmp_path: Path) -> None:
    environment = os.environ | {
        "PYTHON": sys.executable,
        "OUT": str(tmp_path),
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        # Of the default minutes, the first part gets seven seconds: a busy machine needs more to
        # import torch.
        [RUN, "--minutes", "600"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "run: no GPU that torch can use; --device cpu tries the scripts without one\n"
    )
    assert report.read("machine", tmp_path)["status"] == "no device"


def test_a_run_that_names_no_part_ends_with_one_line() -> None:
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(
        [RUN, "--only", "gpus"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("run: no part gpus; there are machine, ")
