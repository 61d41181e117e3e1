"""What reductions have in common: how tensors are combined, and how they are submitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from taco_train.lightcc.horovod.ops import ReduceOp
from taco_train.lightcc.horovod.process_sets import ProcessSet
from taco_train.lightcc.horovod.torch.handles import make_handle
from taco_train.lightcc.horovod.torch.submit import submit
from taco_train.lightcc.negotiation.requests import Kind


class Reduction(NamedTuple):
    """How the tensors of the ranks of a process set are combined; see `make_reduction`."""

    kind: Kind
    op: ReduceOp
    prescale: float
    postscale: float
    process_set: ProcessSet

    def start(
        self,
        tensors: Sequence[Tensor],
        name: str | None,
        *,
        in_place: bool = False,
        is_group: bool = False,
    ) -> int:
        """Submit a tensor, or tensors as one; the handle's result is a list for a group."""
        works = submit(
            self.kind,
            tensors,
            name,
            self.process_set,
            op=self.op,
            prescale=self.prescale,
            postscale=self.postscale,
            in_place=in_place,
            is_group=is_group,
        )
        return make_handle(works, (lambda outputs: outputs) if is_group else (lambda one: one[0]))


def make_reduction(
    kind: Kind, op: ReduceOp, prescale: float, postscale: float, process_set: ProcessSet
) -> Reduction:
    """A reduction of tensors that are multiplied by factors before and after.

    Raises:
        TypeError, ValueError: a factor is no finite number.
    """
    before, after = _factor("prescale_factor", prescale), _factor("postscale_factor", postscale)
    return Reduction(kind, op, before, after, process_set)


def _factor(name: str, given: float) -> float:
    try:
        value = float(given)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} is {given!r}; it must be a number") from None
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value}; it must be a finite number")
    return value
