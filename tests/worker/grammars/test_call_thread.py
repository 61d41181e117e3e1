"""The thread of a `CallThread`: order, errors, priority."""

import os
import threading

import pytest

from taco_worker.grammars.call_thread import CallThread


def test_calls_run_in_order_in_one_other_thread() -> None:
    thread = CallThread("test")
    ids = [thread.submit(threading.get_ident) for _ in range(5)]
    assert len({found.result() for found in ids} - {threading.get_ident()}) == 1


def test_an_error_belongs_to_its_call() -> None:
    thread = CallThread("test")
    failed, next_one = thread.submit(lambda: 1 // 0), thread.submit(lambda: 7)
    with pytest.raises(ZeroDivisionError):
        failed.result()
    assert next_one.result() == 7


def test_niceness_is_that_of_the_thread_alone() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    usual = niceness()
    thread = CallThread("test", niceness=3)
    assert thread.submit(niceness).result() == min(19, usual + 3)
    assert CallThread("test").submit(niceness).result() == usual
    assert niceness() == usual
