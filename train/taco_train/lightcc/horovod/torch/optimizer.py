"""DistributedOptimizer: gradients are combined while the backward pass continues."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from taco_train.lightcc.horovod.elastic.membership import is_elastic
from taco_train.lightcc.horovod.ops import Adasum, Average, ReduceOp, choose_op
from taco_train.lightcc.horovod.process_sets import (
    ProcessSet,
    check_registered,
    global_process_set,
)
from taco_train.lightcc.horovod.state import current, is_initialized
from taco_train.lightcc.horovod.torch.adasum_optimizer import AdasumMixin
from taco_train.lightcc.horovod.torch.compression import Compression, Compressor
from taco_train.lightcc.horovod.torch.gradient_groups import groups_of, name_added, named
from taco_train.lightcc.horovod.torch.handles import synchronize
from taco_train.lightcc.horovod.torch.reductions import (
    allreduce_async_,
    grouped_allreduce_async_,
)
from taco_train.lightcc.horovod.torch.sparse import sparse_allreduce_async

_UNSENT = "lightcc"  # key of a state
Parameters = tuple[torch.nn.Parameter, ...]


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """An optimizer of the same class, parameters and state that combines gradients of all ranks.

    Args:
        optimizer: must not be used beside the result, apart from schedulers that have it.
        named_parameters: `model.named_parameters()`; None: parameters are named by their order.
        backward_passes_per_step: backward passes whose gradients are added before `step`.
        op: Average, Sum, or Adasum, which combines the ranks' updates.
        gradient_predivide_factor: with Average, gradients are divided by it before the sum, and
            the sum is multiplied by it / size after.
        num_groups, groups: gradients that are combined together: their number, or lists of
            parameters; `num_groups` is deprecated.
        sparse_as_dense: sparse gradients are made dense first.

    Raises:
        TypeError: `optimizer`, `compression` or `process_set` is something else.
        ValueError: the optimizer combines gradients already, the process set is not registered,
            names are missing or not unique, or options contradict each other.
    """
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(f"an optimizer of torch is needed, not {type(optimizer).__name__}")
    if isinstance(optimizer, GradientMixin | AdasumMixin):
        raise ValueError("the optimizer is one of DistributedOptimizer already")
    if not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        raise TypeError(
            f"compression is {compression!r}; it must be hvd.Compression.none, "
            "hvd.Compression.fp16 or a class with compress and decompress"
        )
    check_registered(process_set)
    chosen = choose_op(op, None)
    if gradient_predivide_factor != 1.0 and chosen is not Average:
        raise ValueError("gradient_predivide_factor needs op=Average")
    if not gradient_predivide_factor > 0:
        raise ValueError(
            f"gradient_predivide_factor is {gradient_predivide_factor}; it must be above 0"
        )
    if not isinstance(backward_passes_per_step, int) or backward_passes_per_step < 1:
        raise ValueError(
            f"backward_passes_per_step is {backward_passes_per_step}; it must be 1 or more"
        )
    if num_groups < 0:
        raise ValueError(f"num_groups is {num_groups}; it must be 0 or more")
    names = named(optimizer, named_parameters)
    mixin: type = AdasumMixin if chosen is Adasum else GradientMixin
    base = type(optimizer)
    wrapped: Any = object.__new__(type(base.__name__, (mixin, base), {}))
    # Shared: a scheduler of `optimizer` must find the parameter groups, also after loading a state.
    wrapped.__dict__ = optimizer.__dict__
    wrapped.__dict__.pop("step", None)  # a scheduler's, which calls the step of `base`
    if chosen is Adasum:
        wrapped.start_adasum(names, compression, backward_passes_per_step, process_set)
        return wrapped
    wrapped.start(
        names,
        compression,
        backward_passes_per_step,
        chosen,
        gradient_predivide_factor,
        groups_of(names, num_groups or groups),
        sparse_as_dense,
        process_set,
    )
    return wrapped


class GradientMixin(torch.optim.Optimizer):
    """Combines gradients of all ranks before each step of the optimizer that it is mixed into."""

    def start(
        self,
        names: dict[torch.nn.Parameter, str],
        compression: type[Compressor],
        backward_passes_per_step: int,
        op: ReduceOp,
        predivide: float,
        groups: list[Parameters],
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        """Set up; parameters are hooked into the backward pass."""
        self._names, self._compression = names, compression
        self.backward_passes_per_step = backward_passes_per_step
        self._op, self._predivide = op, predivide
        self._sparse_as_dense, self._process_set = sparse_as_dense, process_set
        self._group_of = {parameter: group for group in groups for parameter in group}
        self._passes_left = dict.fromkeys(names, backward_passes_per_step)
        self._waiting: dict[Parameters, Callable[[], None]] = {}
        self._should_synchronize, self._is_synchronized = True, False
        self._hooks: dict[torch.nn.Parameter, RemovableHandle] = {}
        self._hook_parameters()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the optimizer's; every rank adds the same parameters, in the same order."""
        super().add_param_group(param_group)
        name_added(self._names, self.param_groups[-1]["params"])

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes come before the next `step`."""
        self.backward_passes_per_step = passes
        self._passes_left = dict.fromkeys(self._names, passes)

    def state_dict(self) -> dict[str, Any]:
        """As the optimizer's; with TopK also what this rank has not sent, if it is something."""
        state = super().state_dict()
        if is_initialized():
            job = current()
            if unsent := job.reducer.state_dict(job.communicator):
                state[_UNSENT] = unsent
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the optimizer's; gradients that are on their way are forgotten.

        What another rank has not sent is ignored, apart from the steps of TopK's warm-up: let each
        rank save and load its state.
        """
        if _UNSENT in state_dict:
            job = current()
            job.reducer.load_state_dict(job.communicator, state_dict[_UNSENT])
        self._waiting.clear()
        self._passes_left = dict.fromkeys(self._names, self.backward_passes_per_step)
        super().load_state_dict(state_dict)

    def synchronize(self) -> None:
        """Wait until every gradient is combined; gradients that are missing count as zeros."""
        self._hook_parameters()
        for group in self._missing_groups():
            self._submit(group)
        for group, wait in list(self._waiting.items()):
            del self._waiting[group]
            wait()
        self._passes_left = dict.fromkeys(self._names, self.backward_passes_per_step)
        self._is_synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """For a `step` after `synchronize`, which gradient clipping needs."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Combine the gradients, or those of each call of the closure; the optimizer's step."""
        if self._should_synchronize:
            if closure is None:
                self._synchronize_in_step()
            else:
                closure = self._combining(closure)
        result = super().step(closure)
        self._is_synchronized = False
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the optimizer's.

        Raises:
            AssertionError: gradients are on their way.
        """
        if self._waiting:
            raise AssertionError(
                "zero_grad() was called between backward() and step() or synchronize(): gradients "
                "are being combined"
            )
        super().zero_grad(set_to_none)

    def _synchronize_in_step(self) -> None:
        if self._is_synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() after "
                "synchronize(): the gradients are combined again",
                stacklevel=3,
            )
        self.synchronize()
        self._is_synchronized = False

    def _combining(self, closure: Callable[[], float]) -> Callable[[], float]:
        """The closure, which also combines the gradients that it computes."""

        def compute() -> float:
            loss = closure()
            self._synchronize_in_step()
            return loss

        return compute

    def _combines(self) -> bool:
        """Whether there are ranks to combine gradients with, or an elastic job may get them."""
        is_included = bool(self._process_set.included())
        return is_included and (current().placement.size > 1 or is_elastic())

    def _hook_parameters(self) -> None:
        """Hook parameters into the backward pass: they may be added, or unfrozen, at any time."""
        if not self._combines():
            return
        for parameter in self._names:
            if parameter.requires_grad and parameter not in self._hooks:
                self._group_of.setdefault(parameter, (parameter,))
                self._passes_left[parameter] = self.backward_passes_per_step
                handle = parameter.register_post_accumulate_grad_hook(self._on_gradient)
                self._hooks[parameter] = handle

    def _on_gradient(self, parameter: Tensor) -> None:
        assert isinstance(parameter, torch.nn.Parameter)
        if self._passes_left[parameter] <= 0:
            raise AssertionError(
                f"{self._names[parameter]} has more than {self.backward_passes_per_step} "
                "gradients since the last step(): raise backward_passes_per_step"
            )
        self._passes_left[parameter] -= 1
        group = self._group_of[parameter]
        if all(self._passes_left[one] == 0 for one in group if one.requires_grad):
            self._submit(group)

    def _missing_groups(self) -> list[Parameters]:
        """Groups of which a gradient did not come: another rank may have computed it."""
        if not self._combines():
            return []
        groups = dict.fromkeys(self._group_of[one] for one in self._names if one.requires_grad)
        return [group for group in groups if group not in self._waiting]

    def _submit(self, group: Parameters) -> None:
        parameters = [one for one in group if one.requires_grad]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [one.grad for one in parameters if one.grad is not None]
        if len(group) == 1 and gradients[0].is_sparse and not self._sparse_as_dense:
            self._waiting[group] = self._submit_sparse(parameters[0], gradients[0])
        else:
            self._waiting[group] = self._submit_dense(
                parameters, gradients, is_group=len(group) > 1
            )

    def _submit_sparse(self, parameter: torch.nn.Parameter, gradient: Tensor) -> Callable[[], None]:
        wait = sparse_allreduce_async(gradient, self._names[parameter], self._op, self._process_set)

        def finish() -> None:
            parameter.grad = wait()

        return finish

    def _submit_dense(
        self, parameters: list[torch.nn.Parameter], gradients: list[Tensor], *, is_group: bool
    ) -> Callable[[], None]:
        pairs = [
            self._compression.compress(one.to_dense() if one.is_sparse else one)
            for one in gradients
        ]
        tensors = [compressed for compressed, _ in pairs]
        factors = 1.0 / self._predivide, self._predivide
        settings = (self._names[parameters[0]], self._op, *factors, self._process_set)
        if is_group:
            handle = grouped_allreduce_async_(tensors, None, *settings)
        else:
            handle = allreduce_async_(tensors[0], None, *settings)

        def finish() -> None:
            results = synchronize(handle)
            for parameter, gradient, result, (_, context) in zip(
                parameters, gradients, results if is_group else [results], pairs, strict=True
            ):
                combined = self._compression.decompress(result, context)
                if gradient.is_sparse:  # optimizers such as SparseAdam take no other gradients
                    combined = combined.to_sparse(gradient.sparse_dim())
                if combined is not gradient:
                    parameter.grad = combined

        return finish
