"""All-reduce and reduce-scatter: blocking, in the background, in place, grouped, differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from taco_train.lightcc.horovod.ops import Average, ReduceOp, choose_op
from taco_train.lightcc.horovod.process_sets import ProcessSet, global_process_set
from taco_train.lightcc.horovod.torch.compression import Compression, Compressor
from taco_train.lightcc.horovod.torch.gathers import allgather
from taco_train.lightcc.horovod.torch.handles import make_handle, synchronize
from taco_train.lightcc.horovod.torch.submit import name_of, submit
from taco_train.lightcc.negotiation.requests import Kind


def _reduce_async(
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


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to combine the ranks' tensors of this name.

    Args:
        tensor: of the same shape and dtype on all ranks; it must not change until the end.
        average: deprecated, see `op`.
        name: equal on all ranks; None: numbered by the order of calls.
        op: Average (default), Sum, Adasum, Min, Max or Product.
        prescale_factor, postscale_factor: multiply the tensor before and after.

    Returns:
        A handle for `poll` and `synchronize`.
    """
    chosen = choose_op(op, average)
    return _reduce_async(
        Kind.ALL_REDUCE, [tensor], name, chosen, process_set, prescale_factor, postscale_factor
    )


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As `allreduce_async`, with the result in `tensor`."""
    return _reduce_async(
        Kind.ALL_REDUCE,
        [tensor],
        name,
        choose_op(op, average),
        process_set,
        prescale_factor,
        postscale_factor,
        in_place=True,
    )


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Combine the ranks' tensors in place and return `tensor`."""
    handle = allreduce_async_(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    )
    result: Tensor = synchronize(handle)
    return result


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Combine the ranks' tensors; gradients flow through it."""
    compressed, context = compression.compress(tensor)
    (reduced,) = _Reduction.apply(
        name,
        choose_op(op, average),
        prescale_factor,
        postscale_factor,
        process_set,
        False,
        compressed,
    )
    return compression.decompress(reduced, context)


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As `allreduce_async` for several tensors, which run as one; the result is a list."""
    chosen = choose_op(op, average)
    return _reduce_async(
        Kind.ALL_REDUCE,
        _checked(tensors),
        name,
        chosen,
        process_set,
        prescale_factor,
        postscale_factor,
        is_group=True,
    )


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As `grouped_allreduce_async`, with the results in `tensors`."""
    return _reduce_async(
        Kind.ALL_REDUCE,
        _checked(tensors),
        name,
        choose_op(op, average),
        process_set,
        prescale_factor,
        postscale_factor,
        in_place=True,
        is_group=True,
    )


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Combine several tensors in place."""
    handle = grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )
    result: list[Tensor] = synchronize(handle)
    return result


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Combine several tensors, which run as one; gradients flow through it."""
    pairs = [compression.compress(tensor) for tensor in _checked(tensors)]
    reduced = _Reduction.apply(
        name,
        choose_op(op, average),
        prescale_factor,
        postscale_factor,
        process_set,
        True,
        *(compressed for compressed, _ in pairs),
    )
    return [
        compression.decompress(one, context)
        for one, (_, context) in zip(reduced, pairs, strict=True)
    ]


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start to combine the ranks' tensors; each rank gets its rows of the result.

    The first ranks have one row more where the rows cannot be divided evenly.
    """
    return _reduce_async(
        Kind.REDUCE_SCATTER,
        [_with_rows(tensor)],
        name,
        _scatter_op(op),
        process_set,
        prescale_factor,
        postscale_factor,
    )


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Combine the ranks' tensors and return this rank's rows; gradients flow through it."""
    compressed, context = compression.compress(_with_rows(tensor))
    (part,) = _Scatter.apply(
        name, _scatter_op(op), prescale_factor, postscale_factor, process_set, False, compressed
    )
    return compression.decompress(part, context)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """As `reducescatter_async` for several tensors, which run together."""
    return _reduce_async(
        Kind.REDUCE_SCATTER,
        [_with_rows(tensor) for tensor in _checked(tensors)],
        name,
        _scatter_op(op),
        process_set,
        prescale_factor,
        postscale_factor,
        is_group=True,
    )


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """As `reducescatter` for several tensors, which run together."""
    pairs = [compression.compress(_with_rows(tensor)) for tensor in _checked(tensors)]
    parts = _Scatter.apply(
        name,
        _scatter_op(op),
        prescale_factor,
        postscale_factor,
        process_set,
        True,
        *(compressed for compressed, _ in pairs),
    )
    return [
        compression.decompress(one, context) for one, (_, context) in zip(parts, pairs, strict=True)
    ]


class _Reduction(torch.autograd.Function):
    """Gradients of an all-reduce are combined in the same way."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        is_group: bool,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.settings = op, prescale, postscale, process_set, is_group
        handle = _reduce_async(
            Kind.ALL_REDUCE, tensors, name, op, process_set, prescale, postscale, is_group=is_group
        )
        result = synchronize(handle)
        return tuple(result) if is_group else (result,)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        op, prescale, postscale, process_set, is_group = ctx.settings
        handle = _reduce_async(
            Kind.ALL_REDUCE,
            gradients,
            None,
            op,
            process_set,
            prescale,
            postscale,
            is_group=is_group,
        )
        result = synchronize(handle)
        return *[None] * 6, *(result if is_group else [result])


class _Scatter(torch.autograd.Function):
    """Gradients of a reduce-scatter are gathered; Horovod scales those of sums by the ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        is_group: bool,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        num_ranks = process_set.size() or 1
        ctx.factor = prescale * postscale * (1 if op is Average else num_ranks)
        ctx.process_set = process_set
        handle = _reduce_async(
            Kind.REDUCE_SCATTER,
            tensors,
            name,
            op,
            process_set,
            prescale,
            postscale,
            is_group=is_group,
        )
        result = synchronize(handle)
        return tuple(result) if is_group else (result,)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        gathered = [
            allgather(gradient * ctx.factor, process_set=ctx.process_set) for gradient in gradients
        ]
        return *[None] * 6, *gathered


def _checked(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    if not tensors:
        raise ValueError("a group of tensors must not be empty")
    return tensors


def _with_rows(tensor: Tensor) -> Tensor:
    if tensor.ndim == 0:
        raise ValueError("reducescatter needs a tensor with a first dimension")
    return tensor


def _scatter_op(op: int) -> ReduceOp:
    chosen = choose_op(op, None)
    if chosen is ReduceOp.ADASUM:
        raise ValueError("reducescatter does not support Adasum")
    return chosen
