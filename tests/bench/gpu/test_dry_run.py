"""Runs each part of a GPU run on the CPU with tiny shapes, so that errors show before a GPU run."""

import os
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import run
from bench.gpu.harness import report
from support.forked_program import ForkedProgram

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROOT = Path(__file__).parents[3]

# Some figures of each part.
EXPECTED: dict[str, set[str]] = {
    "machine": {"environment", "ceilings"},
    "correctness": {"tokens, float32", "kernels"},
    "attention": {
        *("heads", "decode 2x40", "prefill 1x24", "chunk 1x8 of 40", "decode 2x40, fp8 KV"),
        *("decode 2x20 + decode 1x70", "decode 2x20 + chunk 1x24 of 40", "chunk 2x3 of 40"),
    },
    "kernels": {
        *("linear qkv, 3 rows", "rms_norm with residual, 1 rows", "rotary, KV write, 3 rows"),
        *("silu_mul, 3 rows", "sample, top_p 0.9, 2 rows", "logprobs, 5 best, 2 rows"),
        *("5 blocks to the host", "linear o_proj, 1 rows"),
    },
    "sweep": {"sweep, decode 2x40", "sweep, prefill 1x40"},
    "worker": {"start", "prefill 40 by 16", "decode 2x24", "decode 1x40"},
    "engine": {"start", "mix", "decode 2x26"},
    "speculation": {
        *("tokens with lookahead, float32", "tokens with medusa, float32"),
        *("tokens with eagle, float32", "verify 1x1", "verify 2x9", "plain, batch 2"),
        *("replay, batch 2", "draft, batch 2", "drafting, batch 2"),
    },
    "peers": {"start", "continuous batching", "static cache, decode 2x24"},
    "quantized": {
        *("bf16: decode 1x24", "fp8: decode 2x24", "4-bit g128: decode 1x24"),
        *("fp8 qkv, 1 rows", "4-bit g32 minima down, 20 rows", "int8 gate_up, 20 rows"),
    },
}


def dry_run(part: str, folder: Path) -> dict[str, Any]:
    path = os.pathsep.join(str(ROOT / name) for name in (".", "tests", "demo"))  # of its children
    arguments = ["--part", part, "--device", "cpu", "--folder", str(folder), "--seconds", "100"]
    program = ForkedProgram(run.main, *arguments, folder=folder, environment={"PYTHONPATH": path})
    assert program.wait() == 0, program.stdout + program.stderr
    return report.read(part, folder)


@pytest.mark.parametrize("part", EXPECTED)
def test_a_part_runs_without_a_gpu(part: str, tmp_path: Path) -> None:
    record = dry_run(part, tmp_path)
    assert record["status"] == report.DONE
    assert record.get("left_out", {}).keys() <= {"flashinfer"}  # where it is not installed
    assert EXPECTED[part] <= record["figures"].keys()
    assert record["gpu"] == "none: CPU, interpreted"
    for name, line in record["figures"].items():
        assert line.get("right", True), name
        assert not line.get("failed"), name
