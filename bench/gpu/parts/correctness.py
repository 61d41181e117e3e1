"""Kernel tests on the GPU, and whole models' tokens beside torch's attention.

The tests are the same ones that run interpreted on a CPU; they use a GPU if there is one.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

from bench.gpu.harness.context import Context
from bench.gpu.inputs.tokens import compare_tokens

ROOT = Path(__file__).parents[3]
# By name: the argument of pytest, and its share of the remaining time.
_SUITES = {"kernels": ("tests/kernels/triton", 0.8), "worker": ("tests/worker/cuda", 1.0)}
_TRIAL = {"kernels": ("tests/kernels/triton/test_activation.py::test_no_tokens_need_no_launch", 1)}
_SHOWN_FAILURES, _FAILURE_CHARS = 40, 1200
# Compiling takes most of the time and uses the host's cores.
_PROCESSES = os.cpu_count() or 1
_END_SECONDS = 8.0


def measure(context: Context) -> None:
    compare_tokens(context)
    for name, (path, share) in (_SUITES if context.is_real else _TRIAL).items():
        if not (ROOT / path.partition("::")[0]).exists():
            context.report.leave_out(name, f"there is no {path}")
            continue
        found = run_suite(path, share * context.report.seconds_left, on_gpu=context.is_real)
        line = f"{found['ran']} ran, {found['failed']} failed, {found['skipped']} skipped"
        context.report.add(name, found, line)


def run_suite(path: str, seconds: float, *, on_gpu: bool) -> dict[str, Any]:
    """Returns counts of tests and the first lines of failures; pytest is interrupted at the time
    limit.
    """
    with TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        options = ["-c", "bench/gpu/parts/pytest.ini", "--rootdir", ".", f"--junitxml={results}"]
        # These only compile, which the GPU tests do anyway.
        options += ["-q", "--tb=short", "-p", "no:cacheprovider", "--ignore-glob=*test_compile*"]
        if on_gpu and importlib.util.find_spec("xdist"):
            options += ["-n", str(_PROCESSES)]
        # Without a C++ compiler, the CPU kernels are not built; these tests do not need them.
        environment = os.environ | {"CXX": "false"} if on_gpu else os.environ
        in_time = _run([sys.executable, "-m", "pytest", path, *options], environment, seconds)
        if not results.exists():
            return {"ran": 0, "failed": 1, "skipped": 0, "in_time": in_time, "failures": []}
        return _summarize(results) | {"in_time": in_time}


def _run(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> bool:
    """Whether the process ended by itself."""
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        process.wait(max(1.0, seconds - _END_SECONDS))
        return True
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # pytest then writes its report
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return False


def _summarize(results: Path) -> dict[str, Any]:
    """Summarizes a JUnit file."""
    cases = [*ElementTree.parse(results).getroot().iter("testcase")]
    failures = []
    for case in cases:
        for outcome in (*case.findall("failure"), *case.findall("error")):
            text = outcome.text or outcome.get("message") or ""
            failures.append(
                f"{case.get('classname')}::{case.get('name')}:\n{text[-_FAILURE_CHARS:]}"
            )
    skipped = sum(case.find("skipped") is not None for case in cases)
    return {
        "ran": len(cases) - skipped,
        "failed": len(failures),
        "skipped": skipped,
        "failures": failures[:_SHOWN_FAILURES],
    }
