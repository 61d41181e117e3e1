"""Log lines as text and as JSON, and what clients cannot do to them."""

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime

import pytest

from support.patience import PATIENCE_SECONDS
from taco_common.logging import (
    JSON,
    REQUEST,
    TEXT,
    LogConfig,
    ServiceHandler,
    configure_logging,
    event,
    parse_entry,
    render,
)

pytestmark = pytest.mark.process

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d"


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger that writes to standard error alone; the test sets its handler."""
    logger = logging.getLogger("taco.test_logging")
    logger.propagate = False
    yield logger
    logger.handlers.clear()
    logger.propagate = True


def log_to(logger: logging.Logger, log_format: str) -> None:
    logger.handlers[:] = [ServiceHandler("gateway", LogConfig(log_format))]


def test_text_has_date_milliseconds_and_zone(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to(logger, TEXT)
    logger.warning("half of %s", "it")
    line = capsys.readouterr().err
    assert re.fullmatch(rf"{TIME} WARNING \[taco.test_logging\] half of it\n", line)
    logged_at = datetime.fromisoformat(line.split()[0])
    assert abs((datetime.now().astimezone() - logged_at).total_seconds()) < PATIENCE_SECONDS


@pytest.mark.parametrize(
    "said",
    [
        "two\n2026-01-01T00:00:00.000+00:00 INFO [taco.gateway] forged",
        "\x1b[2J\x1b]0;title\x07",
        "back\rspace\x08\x00",
        "line\u2028separator and \u202eright to left",
        "C1 \x9b31m",
        "half a character \ud83d",
    ],
)
@pytest.mark.parametrize("log_format", [TEXT, JSON])
def test_nothing_forges_a_line(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str], log_format: str, said: str
) -> None:
    log_to(logger, log_format)
    logger.warning("client said %s", said)
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert text.removesuffix("\n").isprintable()
    if log_format == JSON:
        assert json.loads(text)["message"] == f"client said {said}"


def test_a_traceback_is_indented_and_its_text_escaped(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to(logger, TEXT)
    try:
        raise ValueError("bad\x1b[31m\nINFO [taco.gateway] forged")
    except ValueError:
        logger.exception("it failed")
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.endswith("it failed")
    assert len(rest) > 2
    assert all(line.startswith("    ") and line.isprintable() for line in rest)


def test_json_has_fixed_fields(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    log_to(logger, JSON)
    logger.warning("done", extra=event(REQUEST, {"status": 200}))
    try:
        raise KeyError("x")
    except KeyError:
        logger.exception("failed")
    done, failed = map(json.loads, capsys.readouterr().err.splitlines())
    assert list(done) == ["time", "level", "service", "logger", "message", "event", "data"]
    assert (done["event"], done["data"]) == ("request", {"status": 200})
    assert list(failed) == ["time", "level", "service", "logger", "message", "exception"]
    assert "Traceback" in failed["exception"]
    assert re.fullmatch(TIME, done["time"])


@pytest.mark.parametrize(
    "line", [b"plain", b"{", b"[]", b'{"message": 5}', b"[" * 100_000, b"\xff\x00", b'{"time": 1}']
)
def test_a_line_that_is_no_entry_becomes_a_warning(line: bytes) -> None:
    entry = parse_entry(line, "worker-0")
    assert (entry["level"], entry["service"], entry["logger"]) == ("WARNING", "worker-0", "stderr")
    assert json.loads(render(entry, JSON)) == entry
    assert "\n" not in render(entry, TEXT)


def test_an_entry_survives_the_way_through_a_supervisor(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to(logger, JSON)
    logger.error("a %s", "message", extra=event(REQUEST, {"id": "x"}))
    line = capsys.readouterr().err
    assert render(parse_entry(line.encode(), "other"), JSON) + "\n" == line


@pytest.mark.parametrize(("level", "shown"), [("debug", 3), ("info", 2), ("error", 0)])
def test_a_process_with_json_writes_nothing_else(level: str, shown: int) -> None:
    """Warnings of Python and the exception that ends it included."""
    program = (
        "import logging, warnings\n"
        "from taco_common.logging import LogConfig, configure_logging\n"
        f"configure_logging('worker', LogConfig('json', {level!r}))\n"
        "configure_logging('worker')\n"  # as services do: nothing changes
        "logging.getLogger('taco.x').debug('one')\n"
        "logging.getLogger('taco.x').info('two')\n"
        "warnings.warn('three')\n"
        "raise RuntimeError('four')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    entries = [json.loads(line) for line in done.stderr.splitlines()]
    assert len(entries) == shown + 1
    assert (entries[-1]["level"], entries[-1]["message"]) == ("CRITICAL", "RuntimeError: four")
    assert done.returncode == 1


def test_other_handlers_are_left_alone() -> None:
    """As those of pytest, or of a program that uses `LLM`."""
    before = list(logging.getLogger().handlers)
    configure_logging("worker")
    assert logging.getLogger().handlers == before
