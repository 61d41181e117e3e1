"""Adasum in an optimizer: the ranks' updates are combined, not their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from taco_train.lightcc.horovod.ops import Adasum
from taco_train.lightcc.horovod.process_sets import ProcessSet
from taco_train.lightcc.horovod.torch.compression import Compressor
from taco_train.lightcc.horovod.torch.gradient_groups import name_added
from taco_train.lightcc.horovod.torch.handles import synchronize
from taco_train.lightcc.horovod.torch.reductions import allreduce_async_


class AdasumMixin(torch.optim.Optimizer):
    """Each rank makes the optimizer's step by itself; Adasum combines how far parameters moved."""

    def start_adasum(
        self,
        names: dict[torch.nn.Parameter, str],
        compression: type[Compressor],
        backward_passes_per_step: int,
        process_set: ProcessSet,
    ) -> None:
        """Set up."""
        self._names, self._compression, self._process_set = names, compression, process_set
        self.backward_passes_per_step = backward_passes_per_step

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's; every rank adds the same parameters, in the same order."""
        super().add_param_group(param_group)
        name_added(self._names, self.param_groups[-1]["params"])

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes come before the next `step`."""
        self.backward_passes_per_step = passes

    def synchronize(self) -> None:
        """Nothing is on its way between steps."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Not possible: updates exist after the step alone.

        Raises:
            AssertionError: always.
        """
        raise AssertionError("skip_synchronize() is not possible with Adasum")
        yield

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """The optimizer's step, from which all ranks arrive at the same parameters."""
        if not self._process_set.included():
            return super().step(closure)
        parameters = [one for one in self._names if one.requires_grad]
        starts = [one.detach().clone() for one in parameters]
        loss = super().step(closure)
        handles = []
        with torch.no_grad():
            for parameter, start in zip(parameters, starts, strict=True):
                delta, context = self._compression.compress(parameter - start)
                name = f"delta.{self._names[parameter]}"
                handle = allreduce_async_(
                    delta, name=name, op=Adasum, process_set=self._process_set
                )
                handles.append((handle, context))
            for parameter, start, (handle, context) in zip(
                parameters, starts, handles, strict=True
            ):
                delta = self._compression.decompress(synchronize(handle), context)
                parameter.copy_(start + delta)
        return loss
