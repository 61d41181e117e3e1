"""Submits tensors' collectives to the engine: checks, names, and what the requests say."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from taco_train.lightcc.collective_runner import Call
from taco_train.lightcc.device.cuda import mark
from taco_train.lightcc.engine import Work
from taco_train.lightcc.horovod.ops import ReduceOp
from taco_train.lightcc.horovod.process_sets import ProcessSet, group_of
from taco_train.lightcc.horovod.state import current, next_number
from taco_train.lightcc.negotiation.requests import (
    MAX_DIMENSIONS,
    MAX_NAME,
    UNNAMED,
    Kind,
    Request,
)

_DTYPES = frozenset(
    {
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    }
)
_DTYPE_NAMES = ", ".join(sorted(str(one).removeprefix("torch.") for one in _DTYPES))
_OF_ROWS = frozenset({Kind.ALL_GATHER, Kind.ALL_TO_ALL, Kind.REDUCE_SCATTER})


def submit(
    kind: Kind,
    tensors: Sequence[Tensor],
    name: str | None,
    process_set: ProcessSet,
    *,
    is_group: bool = False,
    in_place: bool = False,
    op: ReduceOp | None = None,
    root: int = -1,
    prescale: float = 1.0,
    postscale: float = 1.0,
    splits: Sequence[int] = (),
) -> list[Work]:
    """Submit one tensor, or a group of tensors that run as one: all, or none where one is wrong.

    Args:
        name: of the tensor or the group; None: numbered by the order of calls.

    Raises:
        TypeError: a tensor or the process set is of another type.
        ValueError: a tensor cannot be sent, its name is pending, or the process set is not
            registered.
        HorovodInternalError: the job has failed.
    """
    group = group_of(process_set)
    for tensor in tensors:
        check_tensor(kind, tensor, name, in_place=in_place, op=op)
    base = name_of(kind, name, group)
    together = (base, len(tensors)) if is_group else ("", 0)
    requests = [
        Request(
            kind,
            f"{base}.{i}" if is_group else base,
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            op="" if op is None else op.name.lower(),
            root=root,
            group=group,
            device=tensor.device.type,
            prescale=prescale,
            postscale=postscale,
            together=together[0],
            num_together=together[1],
        )
        for i, tensor in enumerate(tensors)
    ]
    longest = requests[-1].name
    if len(longest) > MAX_NAME:
        raise ValueError(
            f"{longest[:40]}…: the name has {len(longest)} characters; {MAX_NAME} are possible"
        )
    engine = current().engine
    calls = [Call(tensor, in_place, splits, mark(tensor)) for tensor in tensors]
    return engine.submit_all(list(zip(requests, calls, strict=True)))


def check_tensor(
    kind: Kind,
    tensor: Tensor,
    name: str | None,
    *,
    in_place: bool = False,
    op: ReduceOp | None = None,
) -> None:
    """Raises TypeError or ValueError where the tensor cannot be sent by this collective."""
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"{_label(kind, name)}: a torch tensor is needed, not {type(tensor).__name__}"
        )
    if hasattr(tensor, "to_local"):
        raise TypeError(
            f"{_label(kind, name)}: a {type(tensor).__name__} is not supported: use to_local()"
        )
    if wrong := _what_is_wrong(kind, tensor, in_place, op):
        raise ValueError(f"{_label(kind, name)}: {wrong}")


def _label(kind: Kind, name: str | None) -> str:
    return f"{kind}.{name}" if name else str(kind)


def _what_is_wrong(kind: Kind, tensor: Tensor, in_place: bool, op: ReduceOp | None) -> str:
    if tensor.is_nested or tensor.layout != torch.strided:
        layout = "nested" if tensor.is_nested else tensor.layout
        return (
            f"tensors of layout {layout} are not supported: use sparse_allreduce_async, or make "
            "the tensor dense"
        )
    if tensor.dtype not in _DTYPES:
        return f"tensors of {tensor.dtype} are not supported; convert it to one of {_DTYPE_NAMES}"
    if tensor.dtype is torch.bool and op is ReduceOp.AVERAGE:
        return "bools have no average; use op=hvd.Max or op=hvd.Min, or convert them to float32"
    if not (tensor.is_cpu or tensor.is_cuda):
        return (
            f"tensors on {tensor.device} are not supported; they must be on the CPU or a CUDA "
            "device"
        )
    if tensor.ndim > MAX_DIMENSIONS:
        return f"the tensor has {tensor.ndim} dimensions; {MAX_DIMENSIONS} are possible"
    if tensor.ndim == 0 and kind in _OF_ROWS:
        return "the tensor has no first dimension; use tensor.reshape(1)"
    if in_place and 0 in tensor.stride():
        pairs = zip(tensor.stride(), tensor.shape, strict=True)
        if any(stride == 0 and size > 1 for stride, size in pairs):
            return "elements of the tensor share memory (expand); use tensor.contiguous()"
    return ""


def check_group(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of a group.

    Raises:
        TypeError: it is one tensor, or no list.
        ValueError: it is empty.
    """
    try:
        listed = [] if isinstance(tensors, Tensor) else list(tensors)
    except TypeError:
        listed = []
    if not listed:
        if isinstance(tensors, list | tuple):
            raise ValueError("a group of tensors must not be empty")
        raise TypeError(f"a group is a list of tensors, not {type(tensors).__name__}")
    return listed


def name_of(kind: Kind, name: str | None, group: int) -> str:
    """The name, or one with a number that all ranks of the process set count alike."""
    return f"{kind}.{name}" if name else f"{UNNAMED}{kind}.{next_number(kind, group)}"


def check_root(root_rank: int) -> int:
    """The number of a rank.

    Raises:
        TypeError: it is no integer.
        ValueError: there is no such rank.
    """
    size = current().placement.size
    try:
        root = operator.index(root_rank)
    except TypeError:
        raise TypeError(
            f"root_rank is {root_rank!r}; it must be an integer from 0 to {size - 1}"
        ) from None
    if not 0 <= root < size:
        raise ValueError(f"root_rank is {root}; it must be from 0 to {size - 1}")
    return int(root)
