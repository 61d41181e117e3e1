"""Reduces buckets in a thread, in the order in which every rank submits them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

from torch import Tensor

from taco_train.collective.communicator import Communicator
from taco_train.lightcc.errors import CollectiveError


class Reducer(Protocol):
    """Adds buffers over the ranks: see BucketReducer."""

    def bind(
        self,
        communicator: Communicator,
        buffer: Tensor,
        op: str,
        names: Sequence[str],
        sizes: Sequence[int],
    ) -> Callable[[], None]: ...


@dataclass(eq=False, slots=True)
class Gradients:
    """A bucket, which may be submitted in every step.

    Attributes:
        buffer: contiguous, on the CPU; it is overwritten by the average.
        names, sizes: of its gradients, one after the other; sizes in elements. What TopK does not
            send is kept under the names.
        reduce: set by the queue.
    """

    buffer: Tensor
    names: Sequence[str]
    sizes: Sequence[int]
    reduce: Callable[[], None] | None = None


class BucketQueue:
    """Averages buckets over the ranks while the backward pass continues.

    Unlike the engine it needs no negotiation: DistributedDataParallel submits the same buckets in
    the same order on all ranks.

    Args:
        communicator: used by the queue's thread alone from now on.
        reducer: computes the sums.
        on_close: called at the end, in the closing thread.
    """

    def __init__(
        self, communicator: Communicator, reducer: Reducer, on_close: Callable[[], None]
    ) -> None:
        self._communicator = communicator
        self._reducer = reducer
        self._on_close = on_close
        # A lock is released when what came before it is done.
        self._submitted: SimpleQueue[Gradients | threading.Lock | None] = SimpleQueue()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._serve, name="lightcc-buckets", daemon=True)
        self._thread.start()

    def submit(self, bucket: Gradients) -> None:
        """Let the thread average a bucket, after those that were submitted before."""
        self._submitted.put(bucket)

    def wait(self) -> None:
        """Return when every submitted bucket is averaged.

        Raises:
            CollectiveError: a bucket failed, this time or before.
        """
        reached = threading.Lock()
        reached.acquire()
        self._submitted.put(reached)
        reached.acquire()
        if self._failure is not None:
            raise CollectiveError(str(self._failure)) from self._failure

    def close(self) -> None:
        """End the thread after the buckets that are submitted."""
        self._submitted.put(None)
        self._thread.join()
        self._on_close()

    def _serve(self) -> None:
        while (one := self._submitted.get()) is not None:
            if not isinstance(one, Gradients):
                one.release()
            elif self._failure is None:
                self._average(one)

    def _average(self, bucket: Gradients) -> None:
        try:
            if bucket.reduce is None:  # here: to decide how, ranks may have to measure together
                bucket.reduce = self._reducer.bind(
                    self._communicator, bucket.buffer, "average", bucket.names, bucket.sizes
                )
            bucket.reduce()
        except Exception as error:
            self._communicator.abort(str(error))  # other ranks may wait for this one
            self._failure = error
