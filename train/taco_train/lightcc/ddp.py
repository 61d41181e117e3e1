"""LightCC under torch's DistributedDataParallel: one line in a training script."""

# Annotations are evaluated: torch checks those of the hook.

import atexit
import itertools
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from taco_train.collective.arguments import type_of
from taco_train.collective.communicator import Communicator
from taco_train.lightcc.bucket_queue import BucketQueue, Gradients
from taco_train.lightcc.bucket_reducer import BucketReducer
from taco_train.lightcc.process_group import connect_process_group
from taco_train.lightcc.settings import Settings, start_settings

_queues: list[BucketQueue] = []
_reductions: list[tuple[BucketReducer, Communicator]] = []  # that of the queue
# The number of each hooked model.
_hooked: weakref.WeakKeyDictionary[DistributedDataParallel, int] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class _Bucket:
    """What the hook does with a bucket of DDP in every step.

    Attributes:
        future: of the buffer; complete from the start.
        is_last: of the backward pass.
    """

    gradients: Gradients
    future: torch.futures.Future[Tensor]
    is_last: bool


@dataclass(slots=True)
class ModelHook:
    """Averages the buckets of one model.

    To make and complete a future for each bucket would take a third of the hook's time. The hook
    returns those of the steps before: DDP reads buffers at the end of the backward pass, behind a
    callback of the hook that waits for the averages.

    Attributes:
        queue: reduces them.
        names: of the model's parameters, by identity; unique among the models of a queue.
    """

    queue: BucketQueue
    names: Mapping[int, str]
    _known: dict[int, _Bucket] = field(default_factory=dict)  # by identity of the buffer
    _num_passes: int = 0  # until buckets are known

    def average(
        self,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[Tensor]:
        """A future of the bucket's buffer, which is the average at the end of the backward pass."""
        found = self._known.get(id(bucket.buffer()))
        if found is None:
            return self._average_new(bucket)
        self.queue.submit(found.gradients)
        if found.is_last:
            # DDP would try to cast an error to a tensor. This raises it as it is.
            Variable._execution_engine.queue_callback(self.queue.wait)
        return found.future

    def _average_new(
        self,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[Tensor]:
        """As `average` in the first passes, and for a rank that is done, in model.join()."""
        parameters = bucket.parameters()
        names = tuple(self.names[id(one)] for one in parameters)
        gradients = Gradients(bucket.buffer(), names, tuple(one.numel() for one in parameters))
        made = _Bucket(gradients, torch.futures.Future(), bucket.is_last())
        made.future.set_result(gradients.buffer)
        if bucket.index() == 0:
            self._num_passes += 1
            self._known.clear()
        if self._num_passes > 1:  # DDP makes its buckets again after the first pass
            self._known[id(gradients.buffer)] = made
        self.queue.submit(gradients)
        if made.is_last:  # at once: with static_graph, DDP first reads buffers before callbacks run
            self.queue.wait()
        return made.future


def ddp_hook(model: DistributedDataParallel) -> None:
    """Let LightCC average the gradients of a model on the CPU.

    Where that fails, since a rank is lost for instance, `backward` raises CollectiveError.

    Args:
        model: its process group must hold all ranks of the job; no backward pass has run.

    Raises:
        TypeError: the model is not wrapped by DistributedDataParallel.
        ValueError: it has a process group of some ranks, was hooked before, or has parameters whose
            gradients are not dense numbers on the CPU.
        VariableError: a variable of the environment has a value that it cannot have.
        RendezvousError, CommunicationError: the ranks cannot find or reach each other.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(
            f"ddp_hook needs a DistributedDataParallel model, not {type(model).__name__}"
        )
    if model in _hooked:
        raise ValueError("the model has LightCC's hook already")
    if dist.get_world_size(model.process_group) != dist.get_world_size():
        raise ValueError("ddp_hook needs the process group of all ranks")
    _check_gradients(model.module)
    if not _queues:
        _queues.append(open_queue(start_settings()))
    number = next(one for one in itertools.count() if one not in set(_hooked.values()))
    names = {id(one): f"model {number}: {name}" for name, one in model.module.named_parameters()}
    model.register_comm_hook(ModelHook(_queues[0], names), _average)
    _hooked[model] = number


def _check_gradients(model: nn.Module) -> None:
    for name, one in model.named_parameters():
        if not one.requires_grad:
            continue
        try:
            type_of(one)
        except ValueError as error:
            raise ValueError(f"ddp_hook cannot take parameter {name}: {error}") from None
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse:
            raise ValueError(
                f"ddp_hook cannot take layer {name}: its gradient is sparse; set sparse=False"
            )


def open_queue(settings: Settings) -> BucketQueue:
    """Connect to the other ranks, as the launcher's variables say.

    Raises:
        RendezvousError, CommunicationError: the ranks cannot find or reach each other.
    """
    communicator = connect_process_group(settings, "ddp")
    reducer = BucketReducer(settings)
    _reductions[:] = [(reducer, communicator)]
    return BucketQueue(communicator, reducer, communicator.close)


def unsent_state() -> dict[str, Any]:
    """What TopK has not sent on this rank: save it with the optimizer's state, on each rank.

    Returns:
        A dictionary for torch.save; empty without TopK and before the first backward pass.
    """
    return {key: value for one in _reductions for key, value in one[0].state_dict(one[1]).items()}


def load_unsent_state(state: dict[str, Any]) -> None:
    """Continue with what `unsent_state` gave on this rank; call it after `ddp_hook`.

    A state of another number of ranks is ignored. Of another rank's, only the steps of TopK's
    warm-up count.
    """
    for reducer, communicator in _reductions:
        reducer.load_state_dict(communicator, state)


def _average(
    hook: Any,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    """DDP's communication hook: a function, since torch checks its annotations."""
    result: torch.futures.Future[Tensor] = hook.average(bucket)
    return result


@atexit.register
def _close() -> None:
    while _queues:
        _queues.pop().close()
