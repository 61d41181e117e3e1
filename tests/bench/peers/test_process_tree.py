"""Process trees, with stub engines: one that grows, one that spins."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from bench.peers.process_tree import ProcessTree
from support.patience import wait_until

pytestmark = pytest.mark.process

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
GROW = "import sys\nfor line in sys.stdin: bytearray(int(line)); print('done', flush=True)"
# Engines start workers: the answers come from a child.
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ECHO!r}])"


@contextlib.contextmanager
def running(code: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()


def ask(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    print(line, file=process.stdin, flush=True)
    return process.stdout.readline().strip()


def test_the_peak_is_kept_and_can_be_reset() -> None:
    with running(GROW) as process:
        tree = ProcessTree(process.pid)
        ask(process, "0")
        tree.reset_peak_memory()
        before = tree.peak_memory_bytes()
        ask(process, str(64 << 20))  # freed again at once
        assert tree.peak_memory_bytes() - before == pytest.approx(64 << 20, rel=0.1)
        tree.reset_peak_memory()
        assert tree.peak_memory_bytes() - before < 16 << 20


def test_a_process_tree_is_suspended_and_resumed() -> None:
    with running(PARENT) as process:
        assert ask(process, "a") == "a"
        tree = ProcessTree(process.pid)
        assert len(tree.processes()) == 2
        tree.suspend()
        # A process that is on a core stops a moment after it was told.
        wait_until(
            lambda: all(each.status() == psutil.STATUS_STOPPED for each in tree.processes()),
            "the stop of all",
        )
        tree.resume()
        assert ask(process, "b") == "b"


def test_a_spinning_process_is_detected() -> None:
    with running("print('on', flush=True)\nwhile True: pass") as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert ProcessTree(process.pid).idle_cpu_share(0.3) > 0.02


def test_a_process_that_waits_uses_nothing() -> None:
    with running(ECHO) as process:
        ask(process, "a")
        assert ProcessTree(process.pid).idle_cpu_share(0.1) <= 0.02
