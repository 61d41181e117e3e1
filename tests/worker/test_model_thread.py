import threading

import pytest

from support.patience import PATIENCE_SECONDS
from taco_worker.model_thread import ModelThread


def test_idle_work_runs_until_it_returns_false() -> None:
    thread = ModelThread()
    idle = threading.Event()
    left = 3

    def work() -> bool:
        nonlocal left
        if not left:
            idle.set()
            return False
        left -= 1
        return True

    thread.submit(lambda: setattr(thread, "when_idle", work)).result(PATIENCE_SECONDS)
    assert idle.wait(PATIENCE_SECONDS)
    assert left == 0


def test_a_call_interrupts_idle_work() -> None:
    thread = ModelThread()
    begun, submitted = threading.Event(), threading.Event()

    def work() -> bool:
        begun.set()
        return submitted.wait(PATIENCE_SECONDS)

    thread.submit(lambda: setattr(thread, "when_idle", work)).result(PATIENCE_SECONDS)
    assert begun.wait(PATIENCE_SECONDS)
    answer = thread.submit(lambda: 42)
    submitted.set()
    assert answer.result(PATIENCE_SECONDS) == 42


def test_failing_idle_work_is_disabled(caplog: pytest.LogCaptureFixture) -> None:
    thread = ModelThread()
    calls = 0

    def work() -> bool:
        nonlocal calls
        calls += 1
        raise RuntimeError("no graph")

    thread.submit(lambda: setattr(thread, "when_idle", work)).result(PATIENCE_SECONDS)
    assert thread.submit(lambda: 1).result(PATIENCE_SECONDS) == 1
    assert thread.submit(lambda: 2).result(PATIENCE_SECONDS) == 2
    assert calls == 1
    assert "no graph" in caplog.text
