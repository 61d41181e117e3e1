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
        self._steps: dict[str, int] = {}  # of those that are not made yet

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
            values = torch.zeros(end - begin, device=device)
            residual = Residual(count, begin, end, values, step=self._steps.pop(key, 0))
            self._residuals[key] = residual
        if (residual.count, residual.begin, residual.end) != (count, begin, end):
            raise ValueError(
                f"top-k: the residual of {key!r} is for elements {residual.begin} to "
                f"{residual.end} of {residual.count}, and this rank now has elements {begin} to "
                f"{end} of {count}: use another key"
            )
        residual.values = residual.values.to(device)
        if has_momentum and residual.momentum is None:
            residual.momentum = torch.zeros(end - begin, device=device)
        if residual.momentum is not None:
            residual.momentum = residual.momentum.to(device)
        return residual

    def find(self, key: str) -> Residual | None:
        """The residual of a bucket; None if it is unknown."""
        return self._residuals.get(key)

    def pop(self, key: str) -> Residual | None:
        """Removes the residual of a bucket; None if it is unknown."""
        self._steps.pop(key, None)
        return self._residuals.pop(key, None)

    def clear(self) -> None:
        self._residuals.clear()
        self._steps.clear()

    @property
    def steps(self) -> dict[str, int]:
        """The calls so far, by key: equal on all ranks, since ratios follow from them."""
        made = {key: residual.step for key, residual in self._residuals.items()}
        return {**self._steps, **made}

    def set_steps(self, steps: Mapping[str, int]) -> None:
        """Continues to count from these numbers."""
        for key, step in steps.items():
            if key in self._residuals:
                self._residuals[key].step = step
            else:
                self._steps[key] = step

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
        self._steps = {}


class SparseCall:
    """What the C++ library takes for TopK of one bucket, without the data.

    Args:
        count: elements of the bucket, which is float32.
    """

    def __init__(
        self,
        count: int,
        op: str,
        wire: TopK,
        residuals: Residuals,
        layout: Layout,
        rank: int,
        depth: int,
    ) -> None:
        index, num_shards = 0, 1
        if depth != FLAT:
            index, num_shards = layout.members.index(rank), layout.num_shards
        owns = index < num_shards
        self._count, self._wire, self._residuals = count, wire, residuals
        self._begin = count * index // num_shards if owns else 0
        self._end = count * (index + 1) // num_shards if owns else 0
        # To what the arguments point.
        self._values: Tensor | None = None
        self._momentum: Tensor | None = None
        self.arguments = SparseArguments(
            count=count,
            momentum_factor=wire.momentum,
            schedule=min(depth, HOSTS) - 1,
            uses_stage=depth != FLAT,
            num_shards=num_shards,
            averages=op == "average",
            as_float16=wire.values == "float16",
        )

    def begin_step(self) -> None:
        """Set what differs from the step before: residuals may be loaded, and ratios warm up."""
        residual = self._residuals.find(self._wire.key)
        if residual is None or residual.values is not self._values:
            residual = self._take_residual()
        ratio = self._wire.ratio_at(residual.step)
        residual.step += 1
        if ratio != self.arguments.ratio:
            self.arguments.ratio = ratio
            length = self._end - self._begin
            self.arguments.num_selected = max(1, round(ratio * length)) if length else 0

    def _take_residual(self) -> Residual:
        has_momentum = self._wire.momentum > 0
        residual = self._residuals.of(
            self._wire.key, self._count, self._begin, self._end, has_momentum=has_momentum
        )
        self._values = residual.values
        self._momentum = residual.momentum if has_momentum else None
        if self._begin < self._end:  # otherwise the rank owns no value of this bucket
            self.arguments.residual = residual.values.data_ptr()
            if self._momentum is not None:
                self.arguments.momentum = self._momentum.data_ptr()
        return residual
