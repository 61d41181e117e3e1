"""LightCC under torch's DistributedDataParallel: one line in a training script."""

# Annotations are evaluated: torch checks those of the hook.

import atexit
import itertools
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from taco_train.collective.arguments import type_of
from taco_train.collective.communicator import Communicator
from taco_train.lightcc.bucket_queue import BucketQueue
from taco_train.lightcc.bucket_reducer import BucketReducer
from taco_train.lightcc.process_group import connect_process_group
from taco_train.lightcc.settings import Settings, start_settings

# DistributedDataParallel makes its buckets again once, after the first backward pass. To ask it for
# hundreds of parameters in every pass takes a third of the hook's time.
_NUM_CHECKS = 2

_queues: list[BucketQueue] = []
_reductions: list[tuple[BucketReducer, Communicator]] = []  # that of the queue
# The number of each hooked model.
_hooked: weakref.WeakKeyDictionary[DistributedDataParallel, int] = weakref.WeakKeyDictionary()


@dataclass(slots=True)
class _Parameters:
    """The parameters of a bucket: their identities, names and numbers of elements.

    Attributes:
        num_checks: backward passes since the first one in which they were the same.
    """

    ids: tuple[int, ...]
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    num_checks: int = 0


@dataclass(slots=True)
class ModelHook:
    """Averages the buckets of one model.

    Attributes:
        queue: reduces them.
        names: of the model's parameters, by identity; unique among the models of a queue.
    """

    queue: BucketQueue
    names: Mapping[int, str]
    _known: dict[int, _Parameters] = field(default_factory=dict)  # by index

    def average(
        self,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[Tensor]:
        """The future of the bucket's buffer, averaged over the ranks."""
        index = bucket.index()
        found = self._known.get(index)
        if found is None or found.num_checks < _NUM_CHECKS:
            found = self._known[index] = self._check(found, bucket.parameters())
        average = self.queue.average(bucket.buffer(), found.names, found.sizes)
        if bucket.is_last():
            # DDP would try to cast an error to a tensor. This raises it as it is, before DDP looks.
            with suppress(RuntimeError):  # no backward pass: a rank that is done, in model.join()
                Variable._execution_engine.queue_callback(average.wait)  # type: ignore[arg-type]
        return average

    def _check(self, known: _Parameters | None, parameters: Sequence[Tensor]) -> _Parameters:
        ids = tuple(map(id, parameters))
        if known is not None and known.ids == ids:
            known.num_checks += 1
            return known
        names = tuple(self.names[one] for one in ids)
        return _Parameters(ids, names, tuple(one.numel() for one in parameters))


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

    A state of another rank, or of another number of ranks, is ignored.
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
