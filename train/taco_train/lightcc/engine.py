"""Runs a rank's collectives in a thread, in the order that all ranks have agreed on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

from taco_train.lightcc.errors import CollectiveError, DuplicateNameError
from taco_train.lightcc.negotiation.messages import Batch
from taco_train.lightcc.negotiation.requests import Request
from taco_train.lightcc.timeline import Timeline

logger = logging.getLogger(__name__)
_BLOCKED_SECONDS = 0.5


@dataclass(eq=False, slots=True)
class Work:
    """A collective that a rank has submitted.

    Attributes:
        request: as the other ranks submit it.
        input: what the runner needs beside the request: tensors, splits.
        output: what the runner made.
        error: why it failed.
        is_done: whether it has ended.
    """

    request: Request
    input: Any = None
    output: Any = None
    error: BaseException | None = None
    is_done: bool = False


class Runner(Protocol):
    """Computes batches; called in the engine's thread."""

    def run(self, requests: Sequence[Request], works: Sequence[Work | None], result: int) -> None:
        """Run the requests as one collective and set the works' outputs.

        Args:
            requests: of a process set that this rank may not be in: then there is nothing to do.
            works: None: this rank has joined and contributes zeros.
            result: of the batch.
        """
        ...

    def abort(self, reason: str) -> None:
        """This rank's part failed: other ranks must not wait for it in the batch that they run."""
        ...


class Link(Protocol):
    """The connection to the coordinator: see RankLink."""

    def submit(self, request: Request) -> None: ...
    def join(self) -> None: ...
    def note_blocked(self) -> None: ...
    def fail(self, reason: str) -> None: ...
    def close(self) -> None: ...


class Engine:
    """A rank's pending collectives.

    Args:
        runner: computes them.
        link: makes the connection to the coordinator, given what to call with each batch and on
            its loss.
        timeline: records what happens to each tensor.
    """

    def __init__(
        self,
        runner: Runner,
        link: Callable[[Callable[[Batch], None], Callable[[str], None]], Link],
        timeline: Timeline,
    ) -> None:
        self._runner = runner
        self._timeline = timeline
        self._lock = threading.Lock()
        self._ended = threading.Condition()  # one for all works: a batch has hundreds
        self._works: dict[tuple[int, str], Work] = {}
        self._join: Work | None = None
        self._failure: CollectiveError | None = None
        self._batches: SimpleQueue[Batch | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="lightcc-engine", daemon=True)
        self._thread.start()
        self._link = link(self._batches.put, self._on_lost)

    def submit(self, request: Request, values: Any = None) -> Work:
        """Submit a collective; it runs once all ranks of its process set have.

        Raises:
            DuplicateNameError: the rank has a pending collective of this name.
            CollectiveError: the job has failed.
        """
        return self.submit_all([(request, values)])[0]

    def submit_all(self, calls: Sequence[tuple[Request, Any]]) -> list[Work]:
        """Submit several collectives, each with its input: all of them, or none where one is wrong.

        Raises:
            DuplicateNameError: a name is that of a pending collective of the rank, or occurs twice.
            CollectiveError: the job has failed.
        """
        works: dict[tuple[int, str], Work] = {}
        with self._lock:
            if self._failure:
                raise CollectiveError(str(self._failure))
            for request, values in calls:
                key = request.key
                if key in self._works or key in works:
                    raise DuplicateNameError(
                        f"{request.name!r} is submitted again before its first {request.kind} has "
                        "ended: names must be unique among pending collectives"
                    )
                works[key] = Work(request, values)
            self._works.update(works)
        for request, _ in calls:
            self._timeline.begin_wait(request.name)
            self._link.submit(request)
        return list(works.values())

    def join(self, request: Request) -> Work:
        """The rank has no more data: its work ends when all ranks have joined."""
        with self._lock:
            if self._failure:
                raise CollectiveError(str(self._failure))
            self._join = work = Work(request)
        self._link.join()
        return work

    def wait(self, work: Work) -> Any:
        """The output of a work.

        Raises:
            CollectiveError: it failed.
        """
        while not self._has_ended(work, _BLOCKED_SECONDS):
            if self._works.get(work.request.key) is work:  # it does not run yet
                self._link.note_blocked()
        if work.error is not None:
            raise CollectiveError(str(work.error)) from work.error
        return work.output

    def close(self) -> None:
        """Leave the job: pending collectives fail here and on the other ranks."""
        self._link.close()
        self._batches.put(None)
        self._thread.join()
        self._fail(CollectiveError("the rank has shut down"))

    def _has_ended(self, work: Work, seconds: float) -> bool:
        """Whether it has, within this time."""
        if work.is_done:
            return True
        with self._ended:
            return self._ended.wait_for(lambda: work.is_done, seconds)

    def _end(self, works: Iterable[Work], error: BaseException | None) -> None:
        with self._ended:
            for work in works:
                work.error = error
                work.is_done = True
            self._ended.notify_all()

    def _on_lost(self, reason: str) -> None:
        self._batches.put(Batch(error=reason))

    def _serve(self) -> None:
        while (batch := self._batches.get()) is not None:
            self._timeline.mark_cycle()
            if not batch.requests and not batch.is_join:
                self._fail(CollectiveError(batch.error))
            else:
                self._run(batch)

    def _run(self, batch: Batch) -> None:
        with self._lock:
            works = [self._works.pop(one.key, None) for one in batch.requests]
            if batch.is_join and self._join is not None:
                works, self._join = [self._join], None
        if batch.is_join and works[0] is not None:
            works[0].output = batch.result
        error: BaseException | None = None
        if batch.error:
            text = ", ".join(one.name for one in batch.requests)
            error = CollectiveError(f"{text}: {batch.error}")
        elif not batch.is_join:
            names = [one.name for one in batch.requests]
            for name in names:
                self._timeline.end_wait(name)
            try:
                with self._timeline.span(names, batch.requests[0].kind.upper()):
                    self._runner.run(batch.requests, works, batch.result)
            except CollectiveError as failure:
                error = failure  # every rank has it, and can continue
            except Exception as failure:
                logger.debug("a collective failed", exc_info=True)
                error = failure
                # Other ranks may wait for this one in this collective, and for its next ones.
                self._runner.abort(str(failure))
                self._link.fail(str(failure))
                self._fail(CollectiveError(str(failure)))
        self._end((work for work in works if work is not None), error)

    def _fail(self, failure: CollectiveError) -> None:
        """End every pending work, and each later one: ranks cannot compute together any more."""
        with self._lock:
            self._failure = self._failure or failure
            works = [*self._works.values(), *([self._join] if self._join else [])]
            self._works.clear()
            self._join = None
        self._end(works, failure)
