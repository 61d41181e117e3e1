import threading

import pytest

from taco_worker.model_thread import ModelThread


def test_idle_work_is_done_until_there_is_none_left() -> None:
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

    thread.submit(lambda: setattr(thread, "when_idle", work)).result(30)
    assert idle.wait(30)
    assert left == 0


def test_a_call_comes_between_pieces_of_idle_work() -> None:
    thread = ModelThread()
    begun, submitted = threading.Event(), threading.Event()

    def work() -> bool:
        begun.set()
        return submitted.wait(30)

    thread.submit(lambda: setattr(thread, "when_idle", work)).result(30)
    assert begun.wait(30)
    answer = thread.submit(lambda: 42)
    submitted.set()
    assert answer.result(30) == 42


def test_idle_work_that_fails_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    thread = ModelThread()
    calls = 0

    def work() -> bool:
        nonlocal calls
        calls += 1
        raise RuntimeError("no graph")

    thread.submit(lambda: setattr(thread, "when_idle", work)).result(30)
    assert thread.submit(lambda: 1).result(30) == 1
    assert thread.submit(lambda: 2).result(30) == 2
    assert calls == 1
    assert "no graph" in caplog.text
