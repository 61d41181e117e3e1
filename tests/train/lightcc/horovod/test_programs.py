"""Random programs of named collectives, which every rank submits in another order.

Each rank also waits for the results in another order, and two of its threads submit. The oracle
computes in float64 from the inputs of all ranks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import taco_train.lightcc.horovod.torch as hvd
from support.communicators import assert_close, digest, values
from support.train_processes import RankPool

pytestmark = pytest.mark.process
HOSTS = ["a", "a", "b", "c"]
SIZE = len(HOSTS)
SETS = ((0, 1, 2, 3), (0, 2), (1, 2, 3))
DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.uint8, torch.int8, torch.int32, torch.int64),
]
OPS = {"sum": hvd.Sum, "average": hvd.Average, "min": hvd.Min, "max": hvd.Max}


@dataclass(frozen=True)
class Step:
    """One collective.

    Attributes:
        kind: of collective; "grouped" is an all-reduce of two tensors.
        ranks: index of its process set in SETS.
        shape: of the tensor; where ranks may have different numbers of rows, rank r has r more.
        root: of a broadcast, index in the process set.
    """

    kind: str
    ranks: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    op: str
    root: int

    @property
    def members(self) -> tuple[int, ...]:
        return SETS[self.ranks]

    def input(self, rank: int, number: int = 0) -> Tensor:
        shape = self.shape
        if self.kind in ("allgather", "alltoall"):
            shape = (shape[0] + rank, *shape[1:])
        return values(100 * number + rank, shape, self.dtype, self.op)

    def splits(self, rank: int) -> list[int]:
        """Rows for each member: most for the last."""
        rows, size = self.shape[0] + rank, len(self.members)
        return [rows // size] * (size - 1) + [rows - rows // size * (size - 1)]


steps = st.builds(
    Step,
    kind=st.sampled_from(
        ["allreduce", "in place", "grouped", "allgather", "broadcast", "alltoall", "reducescatter"]
    ),
    ranks=st.integers(0, len(SETS) - 1),
    shape=st.sampled_from([(1,), (7,), (5, 3), (0, 2), (3, 1, 2), (1001,)]),
    dtype=st.sampled_from(DTYPES),
    op=st.sampled_from(list(OPS)),
    root=st.integers(0, 1),
)


@pytest.fixture(scope="module", params=["65536", "0"], ids=["fused", "alone"])
def ranks(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    environment = {"HOROVOD_FUSION_THRESHOLD": request.param, "HOROVOD_CACHE_CAPACITY": "12"}
    with RankPool(SIZE, hosts=HOSTS, environment=environment) as pool:
        pool.run(start)
        yield pool


PROCESS_SETS: list[hvd.ProcessSet] = []


def start() -> None:
    torch.set_num_threads(1)
    hvd.init()
    PROCESS_SETS[:] = [hvd.global_process_set]
    PROCESS_SETS.extend(hvd.add_process_set(list(some)) for some in SETS[1:])


@settings(max_examples=25, deadline=None)
@given(st.lists(steps, min_size=1, max_size=12), st.integers(0, 999))
def test_any_program_in_any_order(ranks: RankPool, program: list[Step], seed: int) -> None:
    first = ranks.run(run_program, program, seed)
    for number, step in enumerate(program):
        if step.kind not in ("alltoall", "reducescatter"):
            # The same bits on all ranks.
            assert len({first[rank][number] for rank in step.members}) == 1
    # The same bits in every run, in whatever order; the names are known now.
    assert ranks.run(run_program, program, seed + 1) == first


def run_program(program: Sequence[Step], seed: int) -> list[str]:
    """The digests of this rank's results, each checked against the oracle; "" where it has none."""
    own = random.Random(f"{seed} {hvd.rank()}")
    mine = [number for number, step in enumerate(program) if hvd.rank() in step.members]
    order = own.sample(mine, len(mine))
    half = own.randint(0, len(order))
    with ThreadPoolExecutor(2) as threads:
        submitted = threads.map(
            lambda numbers: {n: submit(program[n], f"step {n}") for n in numbers},
            [order[:half], order[half:]],
        )
        handles = {n: handle for part in submitted for n, handle in part.items()}
    digests = [""] * len(program)
    for number in own.sample(mine, len(mine)):
        result = hvd.synchronize(handles[number])
        digests[number] = check(program[number], result)
    return digests


def submit(step: Step, name: str) -> int:
    tensor, group = step.input(hvd.rank()), PROCESS_SETS[step.ranks]
    keywords: dict[str, Any] = {"name": name, "process_set": group}
    submits: dict[str, Callable[[], int]] = {
        "allreduce": lambda: hvd.allreduce_async(tensor, op=OPS[step.op], **keywords),
        "in place": lambda: hvd.allreduce_async_(tensor, op=OPS[step.op], **keywords),
        "grouped": lambda: hvd.grouped_allreduce_async(
            [tensor, step.input(hvd.rank(), 1)], op=OPS[step.op], **keywords
        ),
        "allgather": lambda: hvd.allgather_async(tensor, **keywords),
        "broadcast": lambda: hvd.broadcast_async(
            tensor, root_rank=step.members[step.root], **keywords
        ),
        "alltoall": lambda: hvd.alltoall_async(
            tensor, torch.tensor(step.splits(hvd.rank())), **keywords
        ),
        "reducescatter": lambda: hvd.reducescatter_async(tensor, op=OPS[step.op], **keywords),
    }
    return submits[step.kind]()


def check(step: Step, result: Any) -> str:
    """Compares with the oracle, and returns the digest of the result."""
    inputs = [step.input(rank) for rank in step.members]
    index = step.members.index(hvd.rank())
    if step.kind in ("allreduce", "in place"):
        assert_close(result, inputs, step.op)
    elif step.kind == "grouped":
        assert_close(result[0], inputs, step.op)
        assert_close(result[1], [step.input(rank, 1) for rank in step.members], step.op)
        return digest(result[0]) + digest(result[1])
    elif step.kind == "allgather":
        assert torch.equal(result, torch.cat(inputs))
    elif step.kind == "broadcast":
        assert torch.equal(result, inputs[step.root])
    elif step.kind == "alltoall":
        received, counts = result
        parts = [
            tensor.split(step.splits(rank))[index]
            for rank, tensor in zip(step.members, inputs, strict=True)
        ]
        assert torch.equal(received, torch.cat(parts))
        assert counts.tolist() == [len(part) for part in parts]
        return digest(received)
    else:
        size, rows = len(step.members), step.shape[0]
        begin = index * (rows // size) + min(index, rows % size)
        end = begin + rows // size + (index < rows % size)
        assert_close(result, [tensor[begin:end] for tensor in inputs], step.op)
    return digest(result)
