"""Reduces buckets in a thread, in the order in which every rank submits them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import torch
from torch import Tensor

from taco_train.collective.communicator import Communicator
from taco_train.lightcc.collective_runner import Reducer
from taco_train.lightcc.errors import CollectiveError

# The gradients' buffer, names and sizes, and whom to tell.
_Bucket = tuple[Tensor, Sequence[str], Sequence[int], torch.futures.Future[Tensor]]


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
        self._buckets: SimpleQueue[_Bucket | None] = SimpleQueue()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._serve, name="lightcc-buckets", daemon=True)
        self._thread.start()

    def average(
        self, buffer: Tensor, names: Sequence[str], sizes: Sequence[int]
    ) -> torch.futures.Future[Tensor]:
        """Submit a bucket.

        Args:
            buffer: contiguous, on the CPU; it is overwritten by the average.
            names, sizes: of its gradients, one after the other; sizes in elements. What TopK does
                not send is kept under the names.

        Returns:
            A future of `buffer`, or of a CollectiveError.
        """
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        self._buckets.put((buffer, names, sizes, future))
        return future

    def close(self) -> None:
        """End the thread after the buckets that are submitted."""
        self._buckets.put(None)
        self._thread.join()
        self._on_close()

    def _serve(self) -> None:
        while (bucket := self._buckets.get()) is not None:
            buffer, names, sizes, future = bucket
            try:
                if self._failure is not None:
                    raise self._failure
                self._reducer.all_reduce(self._communicator, buffer, "average", names, sizes)
            except Exception as error:
                self._communicator.abort(str(error))  # other ranks may wait for this one
                self._failure = CollectiveError(str(error))
                future.set_exception(self._failure)  # type: ignore[arg-type]
            else:
                future.set_result(buffer)
