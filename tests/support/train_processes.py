"""Rank processes for tests: a pool that runs functions in every rank.

A pool's processes are forked from a server that has imported torch already, so that a rank starts
in milliseconds:

    with RankPool(4, hosts=["a", "a", "b", "b"]) as pool:
        assert pool.run(rank_of_this_process) == [0, 1, 2, 3]

Functions and their arguments are pickled: functions are those of modules, not closures.
"""

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.patience import PATIENCE_SECONDS
from support.serving import free_port
from taco_train.cluster.launch import environments

# torch imports _dynamo with the first optimizer, and DTensor with it.
PRELOADED = [
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "pytest",
    "hypothesis",
    "support.train_processes",
]


@dataclass(frozen=True)
class Outcome:
    """What became of a call in one rank.

    Attributes:
        value: what the function returned.
        error: the exception that it raised, where that can be pickled, otherwise a RuntimeError.
        traceback: the exception's, as text.
        exit_code: of the process where it ended instead of answering; -9 after SIGKILL.
    """

    value: Any = None
    error: BaseException | None = None
    traceback: str = ""
    exit_code: int | None = None

    @property
    def is_good(self) -> bool:
        return self.error is None and self.exit_code is None


class RankPool:
    """Processes, one a rank, that run functions until the pool is closed.

    Args:
        size: number of ranks.
        hosts: host of every rank, by rank; all share one unless given.
        environment: further variables for all ranks.
    """

    def __init__(
        self,
        size: int,
        *,
        hosts: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        variables = environments(list(hosts or ["host"] * size), "127.0.0.1", free_port())
        self.size = size
        self._pipes: list[Connection] = []
        self._processes: list[ForkServerProcess] = []
        self._stacks: list[Path] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            stacks = Path(tempfile.mkstemp(prefix="rank-", suffix=".stacks")[1])
            process = context.Process(
                target=_serve,
                args=(theirs, {**variables[rank], **(environment or {})}, stacks),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
            self._stacks.append(stacks)

    @property
    def pids(self) -> list[int]:
        return [process.pid or 0 for process in self._processes]

    def start(
        self, function: Callable[..., Any], *args: Any, ranks: Iterable[int] | None = None
    ) -> None:
        """Calls `function(*args)` in the ranks, all by default, and does not wait: see `finish`."""
        for rank in range(self.size) if ranks is None else ranks:
            # `finish` gives the exit code of a rank that has ended.
            with contextlib.suppress(BrokenPipeError):
                self._pipes[rank].send((function, args))

    def finish(
        self, ranks: Iterable[int] | None = None, *, timeout: float = PATIENCE_SECONDS
    ) -> list[Outcome]:
        """Waits for what `start` began, and returns the outcomes in the order of `ranks`.

        Raises:
            AssertionError: a rank is still busy after `timeout` seconds; the message has the stacks
                of all those. The ranks are killed.
        """
        chosen = list(range(self.size) if ranks is None else ranks)
        outcomes: dict[int, Outcome] = {}
        deadline = time.monotonic() + timeout
        while missing := [rank for rank in chosen if rank not in outcomes]:
            by_pipe = {self._pipes[rank]: rank for rank in missing}
            ready = wait(list(by_pipe), max(0.0, deadline - time.monotonic()))
            if not ready:
                self._fail(missing, timeout)
            for pipe in ready:
                assert isinstance(pipe, Connection)
                outcomes[by_pipe[pipe]] = self._receive(by_pipe[pipe])
        return [outcomes[rank] for rank in chosen]

    def outcomes(
        self,
        function: Callable[..., Any],
        *args: Any,
        ranks: Iterable[int] | None = None,
        timeout: float = PATIENCE_SECONDS,
    ) -> list[Outcome]:
        """Calls a function in the ranks, and says what became of each call."""
        chosen = list(range(self.size) if ranks is None else ranks)
        self.start(function, *args, ranks=chosen)
        return self.finish(chosen, timeout=timeout)

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        ranks: Iterable[int] | None = None,
        timeout: float = PATIENCE_SECONDS,
    ) -> list[Any]:
        """Calls a function in the ranks, and returns its values.

        Raises:
            AssertionError: a call raised, or a process ended; the message has the tracebacks.
        """
        chosen = list(range(self.size) if ranks is None else ranks)
        outcomes = self.outcomes(function, *args, ranks=chosen, timeout=timeout)
        failures = [
            f"rank {rank}: {outcome.traceback or f'exit code {outcome.exit_code}'}"
            for rank, outcome in zip(chosen, outcomes, strict=True)
            if not outcome.is_good
        ]
        assert not failures, "\n".join(failures)
        return [outcome.value for outcome in outcomes]

    def signal(self, rank: int, number: signal.Signals) -> None:
        """Sends a signal, e.g. SIGKILL or SIGSTOP, to a rank's process."""
        os.kill(self.pids[rank], number)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        deadline = time.monotonic() + 10
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:  # stopped, or busy
                process.kill()
                process.join()
        for stacks in self._stacks:
            stacks.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _receive(self, rank: int) -> Outcome:
        try:
            received = self._pipes[rank].recv()
        except (EOFError, ConnectionError):
            self._processes[rank].join()
            return Outcome(exit_code=self._processes[rank].exitcode)
        assert isinstance(received, Outcome)
        return received

    def _fail(self, ranks: list[int], timeout: float) -> None:
        for rank in ranks:
            self.signal(rank, signal.SIGUSR1)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and not all(
            self._stacks[rank].stat().st_size for rank in ranks
        ):
            time.sleep(0.02)
        stacks = [f"rank {rank}:\n{self._stacks[rank].read_text()}" for rank in ranks]
        for process in self._processes:
            process.kill()
        raise AssertionError(f"busy after {timeout} s: " + "\n".join(stacks))


def _serve(pipe: Connection, environment: dict[str, str], stacks: Path) -> None:
    """The life of a rank: calls what comes until the pool closes its end."""
    os.environ.update(environment)
    with stacks.open("w") as file:
        faulthandler.register(signal.SIGUSR1, file=file)
        while True:
            try:
                function, args = pipe.recv()
            except EOFError:
                return
            except Exception as error:  # a module that cannot be imported here
                pipe.send(Outcome(error=RuntimeError(str(error)), traceback=_text(error)))
                continue
            outcome = _call(function, args)
            try:
                pipe.send(outcome)
            except BrokenPipeError:
                return
            except Exception as error:  # what cannot be pickled
                text = _text(outcome.error or error)
                pipe.send(Outcome(error=RuntimeError(text), traceback=text))


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> Outcome:
    try:
        return Outcome(value=function(*args))
    except Exception as error:
        return Outcome(error=error, traceback=_text(error))


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
