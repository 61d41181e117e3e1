"""The ways to average gradients that the benchmarks compare, behind one hook of one DDP model.

One model serves all of them, so that a run can alternate between them and holds its parameters
once. Plain DDP reduces with torch's own hook `allreduce_hook`, which does what DDP does without a
hook.
"""

# Annotations are evaluated: torch checks those of the hook.

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from bench.train.figures import AUTO, DDP, FLOAT16, OFF, POWER_SGD, TOP_K, TWO_LEVEL
from taco_train.cluster.ranks import Placement
from taco_train.cluster.store import KeyValueStore
from taco_train.collective.communicator import Communicator
from taco_train.lightcc.bucket_queue import BucketQueue
from taco_train.lightcc.bucket_reducer import BucketReducer
from taco_train.lightcc.ddp import ModelHook
from taco_train.lightcc.settings import Settings

SETTINGS: Mapping[str, Settings] = {
    TWO_LEVEL: Settings(two_level=True),
    FLOAT16: Settings(two_level=True, compression="fp16"),
    TOP_K: Settings(two_level=True, top_k=True),
    AUTO: Settings(compression="auto"),
}
_RANK = 4  # of PowerSGD's matrices
_FIRST_COMPRESSED_STEP = 2  # PowerSGD's least: DDP makes its buckets again after the first step

Average = Callable[[Any], torch.futures.Future[Tensor]]


class Arms:
    """A DDP model whose gradients are averaged by one arm at a time.

    Args:
        model: on the CPU; all ranks have equal parameters.
        placement, store: of this rank (`taco_train.collective.store.connect`).
        settings: of LightCC's arms, by name.

    Attributes:
        model: call it forward, then `backward` on its loss.
        current: name of the arm that averages.
    """

    def __init__(
        self,
        model: nn.Module,
        placement: Placement,
        store: KeyValueStore,
        settings: Mapping[str, Settings] = SETTINGS,
    ) -> None:
        # As Horovod: the statistics of batches are each rank's own.
        self.model = DistributedDataParallel(
            model, broadcast_buffers=False, gradient_as_bucket_view=True
        )
        self.current = DDP
        self._queues: dict[str, BucketQueue] = {}
        names = {id(one): name for name, one in model.named_parameters()}
        world = dist.group.WORLD
        assert world is not None
        self._averages: dict[str, Average] = {
            OFF: _unchanged,
            DDP: lambda bucket: default_hooks.allreduce_hook(world, bucket),
        }
        self._placement, self._store, self._names = placement, store, names
        self._settings = settings
        for name in (POWER_SGD, *settings):
            self.restart(name)
        self.model.register_comm_hook(self, _average)

    def restart(self, name: str) -> None:
        """Start an arm that compresses anew: nothing is unsent, and costs are not known."""
        if name == POWER_SGD:
            self._averages[name] = _PowerSGD().average
            return
        if name in self._queues:
            self._queues.pop(name).close()
        communicator = Communicator(self._placement, self._store, name=f"arm {name}")
        reducer = BucketReducer(self._settings[name])
        self._queues[name] = BucketQueue(communicator, reducer, communicator.close)
        self._averages[name] = ModelHook(self._queues[name], self._names).average

    def average(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Average one bucket with the current arm."""
        return self._averages[self.current](bucket)

    def close(self) -> None:
        """End the threads and connections; gloo's group stays open."""
        for queue in self._queues.values():
            queue.close()


def _average(
    arms: Any,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    result: torch.futures.Future[Tensor] = arms.average(bucket)
    return result


def _unchanged(bucket: Any) -> torch.futures.Future[Tensor]:
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class _PowerSGD:
    """torch's hook with a group for each bucket.

    The hook starts collectives of several buckets from callbacks, whose order differs between
    ranks. On one group gloo would then pair those of different buckets.
    """

    def __init__(self) -> None:
        self._states: dict[int, powerSGD_hook.PowerSGDState] = {}

    def average(self, bucket: Any) -> torch.futures.Future[Tensor]:
        state = self._states.get(bucket.index())
        if state is None:  # on all ranks at the same bucket
            state = self._states[bucket.index()] = powerSGD_hook.PowerSGDState(
                dist.new_group(),
                matrix_approximation_rank=_RANK,
                start_powerSGD_iter=_FIRST_COMPRESSED_STEP,
            )
        if not bucket.is_last():  # the hook counts the last bucket's steps itself
            state.iter += 1
        future: torch.futures.Future[Tensor] = powerSGD_hook.powerSGD_hook(state, bucket)
        return future
