"""What top-k compression has not sent yet, by bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from taco_train.collective.levels import FLAT, HOSTS, Layout
from taco_train.collective.library import SparseArguments
from taco_train.collective.wire import TopK

_CPU = torch.device("cpu")


@dataclass
class Residual:
    """Of this rank's shard of one bucket.

    Attributes:
        count: elements of the bucket.
        begin, end: this rank's shard of it.
        values: float32, `end - begin`: what is to be sent later.
        momentum: the same shape, or None without momentum correction.
        step: calls so far.
    """

    count: int
    begin: int
    end: int
    values: Tensor
    momentum: Tensor | None = None
    step: int = 0


class Residuals:
    """The residuals of one rank, by key."""

    def __init__(self) -> None:
        self._residuals: dict[str, Residual] = {}

    def of(
        self,
        key: str,
        count: int,
        begin: int,
        end: int,
        *,
        has_momentum: bool,
        device: torch.device = _CPU,
    ) -> Residual:
        """The residual of a bucket: zeros at first; moved to the device where it is elsewhere.

        Raises:
            ValueError: the one that is there is of another size or shard.
        """
        residual = self._residuals.get(key)
        if residual is None:
            residual = Residual(count, begin, end, torch.zeros(end - begin, device=device))
            self._residuals[key] = residual
        if (residual.count, residual.begin, residual.end) != (count, begin, end):
            raise ValueError(
                f"top-k: the residual of {key!r} is for elements {residual.begin} to "
                f"{residual.end} of {residual.count}, and this rank now has elements {begin} to "
                f"{end} of {count}: use another key, or clear the residuals"
            )
        residual.values = residual.values.to(device)
        if has_momentum and residual.momentum is None:
            residual.momentum = torch.zeros(end - begin, device=device)
        if residual.momentum is not None:
            residual.momentum = residual.momentum.to(device)
        return residual

    def pop(self, key: str) -> Residual | None:
        """Removes the residual of a bucket; None if it is unknown."""
        return self._residuals.pop(key, None)

    def clear(self) -> None:
        self._residuals.clear()

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Of this rank: every rank saves its own. Tensors are not copied."""
        return {key: dict(vars(residual)) for key, residual in self._residuals.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Replaces all residuals by a state of this rank; tensors are copied."""
        loaded = {}
        for key, saved in state.items():
            fields = dict(saved)
            fields["values"] = fields["values"].clone()
            if fields["momentum"] is not None:
                fields["momentum"] = fields["momentum"].clone()
            loaded[key] = Residual(**fields)
        self._residuals = loaded


def sparse_arguments(
    count: int,
    op: str,
    wire: TopK,
    residuals: Residuals,
    layout: Layout,
    rank: int,
    depth: int,
) -> SparseArguments:
    """What the C++ library takes for one call, without the data; counts the call as a step.

    Args:
        count: elements of the bucket, which is float32.
    """
    index, num_shards = 0, 1
    if depth != FLAT:
        index, num_shards = layout.members.index(rank), layout.num_shards
    owns = index < num_shards
    begin = count * index // num_shards if owns else 0
    end = count * (index + 1) // num_shards if owns else 0
    residual = residuals.of(wire.key, count, begin, end, has_momentum=wire.momentum > 0)
    ratio = wire.ratio_at(residual.step)
    residual.step += 1
    is_used = begin < end  # otherwise the rank owns no value of this bucket
    momentum = residual.momentum if is_used and wire.momentum > 0 else None
    return SparseArguments(
        count=count,
        residual=residual.values.data_ptr() if is_used else None,
        momentum=None if momentum is None else momentum.data_ptr(),
        num_selected=max(1, round(ratio * (end - begin))) if is_used else 0,
        ratio=ratio,
        momentum_factor=wire.momentum,
        schedule=min(depth, HOSTS) - 1,
        uses_stage=depth != FLAT,
        num_shards=num_shards,
        averages=op == "average",
        as_float16=wire.values == "float16",
    )
