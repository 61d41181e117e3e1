"""Parameters, optimizers' states and other Python values, the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from taco_train.lightcc.horovod.process_sets import ProcessSet, global_process_set
from taco_train.lightcc.horovod.state import current
from taco_train.lightcc.horovod.torch.gathers import allgather, broadcast_, broadcast_async_
from taco_train.lightcc.horovod.torch.gradient_groups import pairs_of
from taco_train.lightcc.horovod.torch.handles import synchronize
from taco_train.lightcc.object_codec import decode_object, encode_object

# An outline of a state has {_PLACEHOLDER: i} in the place of tensor i.
_PLACEHOLDER = "taco_train tensor"
Named = Mapping[str, Any] | Iterable[tuple[str, Any]]


def broadcast_parameters(
    params: Named, root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Copy the root's parameters and buffers into every rank's.

    Args:
        params: `model.state_dict()`, or pairs of names and tensors such as
            `model.named_parameters()`. Values that are no tensors are skipped.

    Raises:
        ValueError: these are no pairs, or there is no such rank.
    """
    items = params.items() if isinstance(params, Mapping) else params
    pairs = pairs_of(items, "params", "model.state_dict()")
    handles = [
        broadcast_async_(tensor, root_rank, name, process_set)
        for name, tensor in pairs
        if isinstance(tensor, Tensor)
    ]
    for handle in handles:
        synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Load the root's optimizer state on every rank, also where the optimizer has none yet.

    Args:
        model: not needed; Horovod takes it.

    Raises:
        TypeError: it is no optimizer.
        ValueError: it is LBFGS, whose state differs between ranks by design.
    """
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(f"an optimizer of torch is needed, not {type(optimizer).__name__}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("the state of LBFGS cannot be broadcast")
    tensors: list[Tensor] = []
    is_root = current().placement.rank == root_rank
    outline = _without_tensors(optimizer.state_dict(), tensors) if is_root else None
    outline = broadcast_object(outline, root_rank, "optimizer state", process_set)
    if not is_root:
        tensors = [torch.empty(shape, dtype=dtype) for dtype, shape in outline["tensors"]]
    for i, tensor in enumerate(tensors):
        broadcast_(tensor, root_rank, f"optimizer state.{i}", process_set)
    if not is_root:
        optimizer.load_state_dict(_with_tensors(outline["value"], tensors))


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's value, on every rank.

    Args:
        obj: numbers, text, containers, tensors and arrays (see object_codec).

    Raises:
        TypeError: the value cannot be sent; other ranks get a HorovodInternalError.
    """
    name = name or "object"
    is_root = current().placement.rank == root_rank
    data = torch.frombuffer(bytearray(encode_object(obj)), dtype=torch.uint8) if is_root else None
    size = torch.tensor([0 if data is None else data.numel()])
    broadcast_(size, root_rank, f"{name}.size", process_set)
    buffer = torch.empty(int(size), dtype=torch.uint8) if data is None else data
    broadcast_(buffer, root_rank, f"{name}.bytes", process_set)
    return obj if is_root else decode_object(buffer.numpy().tobytes())


def broadcast_object_fn(
    root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """`broadcast_object` as a function of the value alone."""
    return lambda obj: broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """The values of all ranks, in the order of ranks.

    Raises:
        TypeError: the value cannot be sent.
    """
    name = name or "object"
    data = torch.frombuffer(bytearray(encode_object(obj)), dtype=torch.uint8)
    sizes = allgather(torch.tensor([data.numel()]), f"{name}.size", process_set).tolist()
    gathered = allgather(data, f"{name}.bytes", process_set)
    return [decode_object(one.numpy().tobytes()) for one in gathered.split(sizes)]


def _without_tensors(state: Any, tensors: list[Tensor]) -> dict[str, Any]:
    value = _map_tensors(state, tensors)
    return {"value": value, "tensors": [(one.dtype, list(one.shape)) for one in tensors]}


def _map_tensors(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors.append(value.detach())
        return {_PLACEHOLDER: len(tensors) - 1}
    if isinstance(value, dict):
        return {key: _map_tensors(one, tensors) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_map_tensors(one, tensors) for one in value)
    return value


def _with_tensors(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_PLACEHOLDER}:
            return tensors[value[_PLACEHOLDER]]
        return {key: _with_tensors(one, tensors) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_with_tensors(one, tensors) for one in value)
    return value
