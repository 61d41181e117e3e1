"""Computes batches of collectives on a rank's communicators; sums of a batch share a buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from taco_train.collective.communicator import Communicator
from taco_train.lightcc.adasum import adasum
from taco_train.lightcc.device.cuda import Mark, SideStream, default_device, mark, wait
from taco_train.lightcc.engine import Work
from taco_train.lightcc.negotiation.requests import Kind, Request


@dataclass(slots=True)
class Call:
    """What a rank's collective works on.

    Attributes:
        tensor: the rank's tensor.
        in_place: the result goes into `tensor`.
        splits: of an all-to-all: rows for each rank.
        mark: where the caller's stream had the tensor's values; None on the CPU.
    """

    tensor: Tensor
    in_place: bool = False
    splits: Sequence[int] = ()
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class _Group:
    """A process set with this rank; `ranks` are numbers among all ranks, in its own order."""

    ranks: tuple[int, ...]
    communicator: Communicator


class Reducer(Protocol):
    """Adds a buffer over the ranks of a communicator, in the way that it finds best."""

    def all_reduce(
        self,
        communicator: Communicator,
        buffer: Tensor,
        op: str,
        names: Sequence[str],
        sizes: Sequence[int],
    ) -> None:
        """Reduce `buffer` in place.

        Args:
            names, sizes: of the tensors in the buffer; sizes in elements.
        """
        ...

    def uses_groups(self, device: torch.device) -> bool:
        """Whether buffers on a device stay there; others must be on the CPU."""
        ...


class CollectiveRunner:
    """The runner of an engine: see `engine.Runner`.

    Args:
        world: of all ranks.
        reducer: computes sums.
    """

    def __init__(self, world: Communicator, reducer: Reducer) -> None:
        everyone = tuple(range(world.size))
        self._groups: dict[int, _Group] = {0: _Group(everyone, world)}
        self._world = world
        self._reducer = reducer
        self._streams: dict[torch.device, SideStream] = {}

    def run(self, requests: Sequence[Request], works: Sequence[Work | None], result: int) -> None:
        first = requests[0]
        if first.kind is Kind.ADD_GROUP:
            self._add_group(first, works, result)
            return
        if first.kind is Kind.REMOVE_GROUP:
            self._remove_group(first)
            return
        group = self._groups.get(first.group)
        if group is None:
            return  # a process set without this rank
        calls = [
            self._zeros(request) if work is None else work.input
            for request, work in zip(requests, works, strict=True)
        ]
        outputs = self._compute(group, requests, calls)
        for work, output in zip(works, outputs, strict=True):
            if work is not None:
                work.output = output

    def abort(self, reason: str) -> None:
        """See `engine.Runner`."""
        self._world.abort(reason)

    def close(self) -> None:
        """Close the communicators of process sets; the world's belongs to its maker."""
        for number, group in self._groups.items():
            if number:
                group.communicator.close()
        self._groups.clear()

    def _compute(
        self, group: _Group, requests: Sequence[Request], calls: Sequence[Call]
    ) -> Sequence[object]:
        kind, communicator = requests[0].kind, group.communicator
        if kind is Kind.ALL_REDUCE:
            return self._all_reduce(communicator, requests, calls)
        if kind is Kind.BARRIER:
            communicator.barrier()
            return [None] * len(calls)
        wait(call.mark for call in calls)
        if kind is Kind.BROADCAST:
            return [
                _broadcast(communicator, group.ranks.index(request.root), call)
                for request, call in zip(requests, calls, strict=True)
            ]
        compute = {
            Kind.ALL_GATHER: _all_gather,
            Kind.ALL_TO_ALL: _all_to_all,
            Kind.REDUCE_SCATTER: _reduce_scatter,
        }[kind]
        return [
            compute(communicator, request, call)
            for request, call in zip(requests, calls, strict=True)
        ]

    def _all_reduce(
        self, communicator: Communicator, requests: Sequence[Request], calls: Sequence[Call]
    ) -> list[Tensor]:
        device, marks = calls[0].tensor.device, [call.mark for call in calls]
        if requests[0].op == "adasum" or not self._reducer.uses_groups(device):
            wait(marks)
            return self._all_reduce_on(torch.device("cpu"), communicator, requests, calls)
        if device not in self._streams:
            self._streams[device] = SideStream(device, communicator.timeout_seconds)
        stream = self._streams[device]
        with stream.after(marks):
            outputs = self._all_reduce_on(device, communicator, requests, calls)
        for output, one in zip(outputs, marks, strict=True):
            stream.hand_over(output, one)
        return outputs

    def _all_reduce_on(
        self,
        device: torch.device,
        communicator: Communicator,
        requests: Sequence[Request],
        calls: Sequence[Call],
    ) -> list[Tensor]:
        """See `_all_reduce`; the buffer is on `device`."""
        first = requests[0]
        tensors = [call.tensor for call in calls]
        buffer = _buffer_of(calls, device)
        _scale(buffer, first.prescale)
        if first.op == "adasum":
            adasum(communicator, buffer, [tensor.numel() for tensor in tensors])
        else:
            op = "sum" if first.op == "average" else first.op
            names = [request.name for request in requests]
            sizes = [tensor.numel() for tensor in tensors]
            self._reducer.all_reduce(communicator, buffer, op, names, sizes)
        divisor = communicator.size if first.op == "average" else 1
        _scale(buffer, first.postscale, divisor)
        return _split(buffer, calls)

    def _zeros(self, request: Request) -> Call:
        """What a rank that has joined contributes: zeros, or no rows."""
        shape = request.shape
        if request.has_free_rows:
            shape = (0, *shape[1:])
        dtype = getattr(torch, request.dtype) if request.dtype else torch.uint8
        device = torch.device("cpu")
        if request.device != "cpu":
            local_rank = self._world.placement.local_rank
            device = next(iter(self._streams), default_device(local_rank))
        tensor = torch.zeros(shape, dtype=dtype, device=device)
        return Call(tensor, mark=mark(tensor))

    def _add_group(self, request: Request, works: Sequence[Work | None], number: int) -> None:
        communicator = self._world.subgroup(request.ranks, f"process set {number}")
        if communicator is not None:
            self._groups[number] = _Group(request.ranks, communicator)
        for work in works:
            if work is not None:
                work.output = number

    def _remove_group(self, request: Request) -> None:
        group = self._groups.pop(request.root, None)
        if group is not None:
            group.communicator.close()


def _buffer_of(calls: Sequence[Call], device: torch.device) -> Tensor:
    """The tensors one after the other, on a device.

    It is a caller's tensor where that takes the result.
    """
    with torch.no_grad():
        if len(calls) > 1:
            return torch.cat([call.tensor.reshape(-1) for call in calls]).to(device)
        (call,) = calls
        tensor = call.tensor.detach()
        takes_result = call.in_place and not tensor.is_inference()
        if not (takes_result and tensor.is_contiguous() and tensor.device == device):
            tensor = tensor.to(device, copy=True).contiguous()
        return tensor.view(-1)


def _split(buffer: Tensor, calls: Sequence[Call]) -> list[Tensor]:
    """The results; in-place ones are in the callers' tensors."""
    outputs: list[Tensor] = []
    targets: list[Tensor] = []
    sources: list[Tensor] = []
    for part, call in zip(
        buffer.split([call.tensor.numel() for call in calls]), calls, strict=True
    ):
        tensor = call.tensor
        part = part.view(tensor.shape)
        if not call.in_place:  # a part that shares the buffer would keep all of it
            outputs.append(part.to(tensor.device, copy=len(calls) > 1))
            continue
        outputs.append(tensor)
        if tensor.is_inference():
            _write(tensor, part)
        elif part.data_ptr() == tensor.data_ptr():
            increment_version(tensor)  # autograd has not seen the change
        else:
            targets.append(tensor)
            sources.append(part)
    if targets:
        with torch.no_grad():
            torch._foreach_copy_(targets, sources)
    return outputs


def _write(tensor: Tensor, values: Tensor) -> Tensor:
    """Overwrite a caller's tensor, which may be one of `torch.inference_mode`."""
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        return tensor.copy_(values)


def _scale(buffer: Tensor, factor: float, divisor: int = 1) -> None:
    """Multiply by `factor`, divide by `divisor`; integers are rounded towards zero."""
    if factor == 1.0 and divisor == 1:
        return
    if buffer.dtype.is_floating_point:
        buffer.mul_(factor / divisor)
    elif factor == 1.0:
        buffer.copy_(torch.div(buffer, divisor, rounding_mode="trunc"))
    else:
        buffer.copy_((buffer.double() * (factor / divisor)).trunc())


def _all_gather(communicator: Communicator, request: Request, call: Call) -> Tensor:
    gathered = communicator.all_gather(call.tensor.detach().cpu().contiguous())
    return gathered.to(call.tensor.device)


def _broadcast(communicator: Communicator, root: int, call: Call) -> Tensor:
    buffer = call.tensor.detach().to("cpu", copy=True).contiguous()
    communicator.broadcast(buffer, root)
    return _write(call.tensor, buffer) if call.in_place else buffer.to(call.tensor.device)


def _all_to_all(
    communicator: Communicator, request: Request, call: Call
) -> tuple[Tensor, list[int]]:
    received, splits = communicator.all_to_all(call.tensor.detach().cpu().contiguous(), call.splits)
    return received.to(call.tensor.device), list(splits)


def _reduce_scatter(communicator: Communicator, request: Request, call: Call) -> Tensor:
    buffer = _buffer_of([call], torch.device("cpu")).view(call.tensor.shape)
    _scale(buffer, request.prescale)
    op = "sum" if request.op == "average" else request.op
    part = communicator.reduce_scatter(buffer, op)
    divisor = communicator.size if request.op == "average" else 1
    _scale(part, request.postscale, divisor)
    return part.to(call.tensor.device)
