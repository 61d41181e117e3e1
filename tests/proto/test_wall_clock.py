"""No service reads the wall clock but where a date is meant."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "proto/taco_proto",
    "common/taco_common",
    "kernels/taco_kernels",
    "worker/taco_worker",
    "draft_cpu/taco_draft",
    "scheduler/taco_scheduler",
    "gateway/taco_gateway",
    "license/taco_license",
    "taco_llm/taco_llm",
)

# Files that may read it, and why. Timeouts, leases, ages and rates use `time.monotonic`, or
# CLOCK_BOOTTIME where the time in which a machine sleeps counts; messages carry durations.
ALLOWED = {
    "gateway/taco_gateway/gateway.py": "`created` of the models that /v1/models lists",
    "gateway/taco_gateway/protocol/responses_api/response_head.py": "`created_at` of an answer",
    "gateway/taco_gateway/protocol/responses_api/response_object.py": "`completed_at` of an answer",
    "gateway/taco_gateway/routes/chat.py": "`created` of an answer",
    "gateway/taco_gateway/routes/completions.py": "`created` of an answer",
    "gateway/taco_gateway/text/chat_template/template_process.py": "the date for chat templates",
    "common/taco_common/logging.py": "the dates of log lines",
    "license/taco_license/ledger/local_ledger.py": "licenses expire at a date",
    "taco_llm/taco_llm/bench/environment.py": "the date of a benchmark",
    "taco_llm/taco_llm/bench/serve_args.py": "the name of a benchmark's directory",
    "taco_llm/taco_llm/certificates.py": "certificates are valid between two dates",
    "taco_llm/taco_llm/cli/license.py": "a license says when it was issued and expires",
}
_TIME = {"time", "time_ns", "ctime", "localtime", "gmtime", "strftime"}
_DATES = {"now", "utcnow", "today"}


def wall_clock_reads(source: str) -> list[int]:
    """The lines of a module that read the wall clock, or name a function that does."""
    return sorted(_reads(ast.parse(source)))


def _reads(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="time"), attr=name) if name in _TIME:
                yield node.lineno
            case ast.Attribute(attr="CLOCK_REALTIME" | "CLOCK_REALTIME_COARSE"):
                yield node.lineno
            case ast.Attribute(value=ast.Name(id="datetime" | "date"), attr=name) if name in _DATES:
                yield node.lineno
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="datetime")), attr=name) if (
                name in _DATES
            ):
                yield node.lineno
            case ast.ImportFrom(module="time", names=names):
                yield from (node.lineno for alias in names if alias.name in _TIME)


@pytest.mark.parametrize(
    "line",
    [
        "time.time()",
        "clock = time.time_ns",
        "from time import monotonic, time",
        "datetime.now(UTC)",
        "datetime.datetime.utcnow()",
        "datetime.date.today()",
        "time.clock_gettime(time.CLOCK_REALTIME)",
    ],
)
def test_a_read_is_found(line: str) -> None:
    assert wall_clock_reads(f"import time\n{line}") == [2]


def test_monotonic_clocks_are_not_meant() -> None:
    assert not wall_clock_reads("time.monotonic(); from time import perf_counter; self.time.time")


def test_only_dates_come_from_the_wall_clock() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if wall_clock_reads(path.read_text())
    }
    assert found == set(ALLOWED), "one that is new needs a reason; one that is gone leaves the list"
