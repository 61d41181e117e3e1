"""The pool of sandboxed processes: reuse, limits and shutdown."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import support
from support.patience import PATIENCE_SECONDS
from taco_gateway.sandbox.process_pool import ProcessLostError, ProcessPool

pytestmark = pytest.mark.process

TESTS = str(Path(next(iter(support.__path__))).parent)
MakePool = Callable[..., ProcessPool]


@pytest.fixture
def make_pool() -> Iterator[MakePool]:
    pools = []

    def make(**options: Any) -> ProcessPool:
        path = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
        pool = ProcessPool("support.obedient_process", environment={"PYTHONPATH": path}, **options)
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pool.close()


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_one_process_answers_one_request_after_the_other(make_pool: MakePool) -> None:
    pool = make_pool()
    pid = pool.ask({})["pid"]
    assert pool.ask({})["pid"] == pid
    pool.close()
    assert not is_alive(pid)


def test_a_process_that_is_at_work_ends_after_close(make_pool: MakePool, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    pool = make_pool()
    with ThreadPoolExecutor(1) as executor:
        answer = executor.submit(pool.ask, {"wait": str(pipe)}, PATIENCE_SECONDS)
        with pipe.open("wb"):  # waits for the process to open it
            pool.close()
        pid = answer.result(PATIENCE_SECONDS)["pid"]
    assert not is_alive(pid)


def test_a_process_that_holds_too_much_is_not_used_again(make_pool: MakePool) -> None:
    pool = make_pool(max_kept_bytes=2**26)
    small = pool.ask({})["pid"]
    assert pool.ask({"grow": 2**27})["pid"] == small
    assert not is_alive(small)
    assert pool.ask({})["pid"] != small


def test_the_reason_of_a_process_that_cannot_start(make_pool: MakePool) -> None:
    pool = make_pool(first_request={"refuse": "its pattern is damaged"})
    with pytest.raises(ProcessLostError, match="its pattern is damaged"):
        pool.ask({})
