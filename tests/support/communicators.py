"""Communicators inside the ranks of a RankPool, kept from call to call, and a reference.

The functions run in the ranks. A pool serves every layout of at most its number of ranks: those
that a layout does not have do nothing.
"""

import functools
import hashlib
import os

import torch
from torch import Tensor

from support.patience import PATIENCE_SECONDS
from taco_train.cluster.ranks import place
from taco_train.cluster.store import KeyValueStore
from taco_train.collective.communicator import Communicator
from taco_train.collective.levels import Levels
from taco_train.collective.store import open_store

RACKS = {"a": "left", "b": "left", "c": "right", "d": "right"}


def own_rank() -> int:
    return int(os.environ["RANK"])


@functools.cache
def store() -> KeyValueStore:
    return open_store(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        serves=own_rank() == 0,
        timeout=PATIENCE_SECONDS,
    )[0]


@functools.cache
def communicator(
    hosts: str, *, intra_size: int | None = None, name: str = "", timeout_seconds: float = 30.0
) -> Communicator:
    """The communicator of a layout: one letter a rank, its host. All its ranks call this."""
    torch.set_num_threads(1)
    return Communicator(
        place(own_rank(), hosts),
        store(),
        name=f"{hosts}/{intra_size}/{name}",
        timeout_seconds=timeout_seconds,
        levels=Levels(intra_size=intra_size, racks=RACKS),
    )


def values(rank: int, shape: tuple[int, ...], dtype: torch.dtype, op: str) -> Tensor:
    """A rank's input: the same in every process. Products and averages stay in range."""
    generator = torch.Generator().manual_seed(1000 + rank)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.is_floating_point:
        spread = torch.randn(shape, generator=generator)
        return (1 + spread / 8 if op == "product" else spread).to(dtype)
    low, high = (0, 13) if op == "average" else (-100, 100)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def reference(inputs: list[Tensor], op: str) -> Tensor:
    """The reduction in float64; of integers, and of booleans, in their own arithmetic."""
    dtype = inputs[0].dtype
    if dtype == torch.bool:
        is_or = op in ("sum", "average", "max")
        return functools.reduce(torch.logical_or if is_or else torch.logical_and, inputs)
    wide = [
        tensor.to(torch.float64 if dtype.is_floating_point else torch.int64) for tensor in inputs
    ]
    if op in ("min", "max"):
        return functools.reduce(torch.minimum if op == "min" else torch.maximum, wide)
    if op == "product":
        result = functools.reduce(torch.mul, wide)
    else:
        result = functools.reduce(torch.add, wide)
    if op == "average":
        result = torch.div(
            result, len(inputs), rounding_mode=None if dtype.is_floating_point else "trunc"
        )
    return result if dtype.is_floating_point else result.to(dtype)


def assert_close(
    result: Tensor, inputs: list[Tensor], op: str, *, epsilon: float | None = None
) -> None:
    """Compares with the reference; floats within the bound of the roundings of all steps.

    Args:
        epsilon: of the coarsest format on the way; the dtype's by default.
    """
    expected = reference(inputs, op)
    if not result.dtype.is_floating_point or (op in ("min", "max") and epsilon is None):
        assert torch.equal(result, expected.to(result.dtype))
        return
    step = torch.finfo(result.dtype).eps if epsilon is None else epsilon
    magnitude = reference([tensor.abs() for tensor in inputs], "sum" if op != "product" else op)
    bound = (len(inputs) + 3) * step * magnitude
    if op == "average":
        bound = bound / len(inputs) + step * expected.abs()
    excess = (result.double() - expected).abs() - bound
    assert not (excess > 0).any(), excess.max().item()


def digest(tensor: Tensor) -> str:
    """Of its bits."""
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()
