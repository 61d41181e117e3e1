"""Runs each part of the training benchmark for GPUs on the CPU, so that errors show before."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]

SCRIPT = Path(__file__).parents[3] / "bench" / "train" / "gpu.sh"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a run of all parts has left its records."""
    folder = tmp_path_factory.mktemp("records")
    environment = os.environ | {"PYTHON": sys.executable, "OUT": str(folder)}
    command = [str(SCRIPT), "--device", "cpu"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize(
    ("part", "hosts"), [("collectives", ["aa", "ab", "aabb"]), ("synthetic", ["ab"])]
)
def test_a_part_runs_without_a_gpu(records: Path, part: str, hosts: list[str]) -> None:
    for one in hosts:
        figures = json.loads((records / f"train_gpu_{part}_{one}.json").read_text())["figures"]
        if part == "collectives":
            assert {"flat", "2D", "2D + fp16", "2D + TopK"} == figures.keys()
            assert all(line["checked"] == 18 for line in figures.values())
        else:
            assert "communication off" in figures["transformer"]["speeds"]


def test_without_a_gpu_it_says_so() -> None:
    done = subprocess.run(
        [SCRIPT],
        env=os.environ | {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "gpu: no GPU that torch can use; --device cpu tries the scripts without one\n"
    )
