"""How reductions are submitted: one tensor, or several that run together."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from taco_train.lightcc.horovod.ops import ReduceOp
from taco_train.lightcc.horovod.process_sets import ProcessSet
from taco_train.lightcc.horovod.torch.handles import make_handle
from taco_train.lightcc.horovod.torch.submit import name_of, submit
from taco_train.lightcc.negotiation.requests import Kind


def reduce_async(
    kind: Kind,
    tensors: Sequence[Tensor],
    name: str | None,
    op: ReduceOp,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
    *,
    in_place: bool = False,
    is_group: bool = False,
) -> int:
    """Submit tensors, as one if they are a group; the handle's result is a list for a group."""
    base = name_of(kind, name)
    works = [
        submit(
            kind,
            tensor,
            f"{base}.{i}" if is_group else base,
            process_set,
            op=op,
            prescale=prescale,
            postscale=postscale,
            in_place=in_place,
            together=(base, len(tensors)) if is_group else ("", 0),
        )
        for i, tensor in enumerate(tensors)
    ]
    return make_handle(works, (lambda outputs: outputs) if is_group else (lambda one: one[0]))
