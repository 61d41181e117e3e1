"""Progress of a load: a bar on a terminal, else a line now and then; events for a supervisor."""

import json
import logging
import os
import pty
import subprocess
import sys
import termios

import pytest

from support.patience import PATIENCE_SECONDS
from taco_common import progress
from taco_common.progress import Progress

pytestmark = pytest.mark.process

PROGRAM = (
    "from taco_common.logging import LogConfig, configure_logging\n"
    "from taco_common.progress import Progress\n"
    "configure_logging('worker', LogConfig('{format}', is_supervised={supervised}))\n"
    "with Progress('loading weights', 100) as progress:\n"
    "    progress.advance(50)\n"
    "    progress.advance(25)\n"
)


TWO_BARS = (
    "from taco_common.progress import ProgressDisplay\n"
    "first, second = ProgressDisplay('first'), ProgressDisplay('second')\n"
    "first.show(1, 2)\n"
    "second.show(1, 2)\n"
    "first.close()\n"
    "second.close()\n"
)


def shown_on_a_terminal(program: str) -> bytes:
    """What the program writes to standard error where that is a terminal."""
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 80))
    process = subprocess.Popen([sys.executable, "-c", program], stderr=end)
    os.close(end)
    shown = b""
    try:
        while chunk := os.read(terminal, 4096):
            shown += chunk
    except OSError:  # the other end is closed
        pass
    os.close(terminal)
    assert process.wait(PATIENCE_SECONDS) == 0
    return shown


def test_a_terminal_has_a_bar() -> None:
    assert b"loading weights:" in shown_on_a_terminal(
        PROGRAM.format(format="text", supervised=False)
    )


def test_a_line_after_two_bars_starts_in_the_first_column() -> None:
    assert shown_on_a_terminal(TWO_BARS).endswith(b"\r")


def test_a_supervisor_gets_events() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(format="json", supervised=True)],
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    entries = [json.loads(line) for line in done.stderr.splitlines()]
    assert {entry["event"] for entry in entries} == {"progress"}
    whole = {"what": "loading weights", "total": 100}
    assert entries[0]["data"] == {**whole, "done": 50, "finished": False}
    assert entries[-1]["data"] == {**whole, "done": 75, "finished": True}


def test_work_without_bytes_is_not_reported() -> None:
    program = PROGRAM.format(format="json", supervised=True).split("    progress.advance")[0]
    done = subprocess.run(
        [sys.executable, "-c", program.replace("100", "0") + "    pass\n"],
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    assert done.stderr == b""


@pytest.mark.parametrize(("seconds", "lines"), [(0.0, 2), (3600.0, 0)])
def test_elsewhere_only_a_long_load_is_logged(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    lines: int,
) -> None:
    caplog.set_level(logging.INFO, "taco.progress")
    monkeypatch.setattr(progress, "LINE_SECONDS", seconds)
    with Progress("loading weights", 4 * 10**9) as load:
        load.advance(10**9)
        load.advance(10**9)
    assert len(caplog.messages) == lines
    assert caplog.messages[1:] == ["loading weights: 50% of 4.0 GB"][:lines]


def test_a_total_may_grow(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "taco.progress")
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with Progress("downloading") as download:
        download.update(10**9, 10**9)
        download.update(10**9, 4 * 10**9)
    assert caplog.messages == ["downloading: 100% of 1.0 GB", "downloading: 25% of 4.0 GB"]
