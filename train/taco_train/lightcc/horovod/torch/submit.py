"""Submits tensors' collectives to the engine: names, checks, and what the request says."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from taco_train.lightcc.collective_runner import Call
from taco_train.lightcc.device.cuda import mark
from taco_train.lightcc.engine import Work
from taco_train.lightcc.horovod.ops import ReduceOp
from taco_train.lightcc.horovod.process_sets import ProcessSet, group_of
from taco_train.lightcc.horovod.state import current, next_number
from taco_train.lightcc.negotiation.requests import UNNAMED, Kind, Request

_DTYPES = frozenset(
    {
        *(torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    }
)


def check_group(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The tensors of a group; raises ValueError where it is empty."""
    if not tensors:
        raise ValueError("a group of tensors must not be empty")
    return tensors


def name_of(kind: Kind, name: str | None) -> str:
    """The name, or one with a number that all ranks count alike."""
    return f"{kind}.{name}" if name else f"{UNNAMED}{kind}.{next_number(kind)}"


def submit(
    kind: Kind,
    tensor: Tensor,
    name: str,
    process_set: ProcessSet,
    *,
    op: ReduceOp | None = None,
    root: int = -1,
    prescale: float = 1.0,
    postscale: float = 1.0,
    in_place: bool = False,
    splits: Sequence[int] = (),
    together: tuple[str, int] = ("", 0),
) -> Work:
    """Submit one tensor.

    Args:
        name: full, as `name_of` makes it.
        together: label and number of the tensors that run as one.

    Raises:
        ValueError: the tensor cannot be sent, its name is pending, or the process set is not
            registered.
        HorovodInternalError: the job has failed.
    """
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name}: a torch tensor is needed, not {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise ValueError(
            f"{name}: tensors of layout {tensor.layout} are not supported: use "
            "sparse_allreduce_async, or make the tensor dense"
        )
    if tensor.dtype not in _DTYPES:
        raise ValueError(f"{name}: tensors of {tensor.dtype} are not supported")
    request = Request(
        kind,
        name,
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        op="" if op is None else op.name.lower(),
        root=root,
        group=group_of(process_set),
        device=tensor.device.type,
        prescale=float(prescale),
        postscale=float(postscale),
        together=together[0],
        num_together=together[1],
    )
    return current().engine.submit(request, Call(tensor, in_place, splits, mark(tensor)))
