"""Collectives of horovod.torch, in processes, against sums that one process computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import taco_train.lightcc.horovod.torch as hvd
from support.train_processes import RankPool

SIZE = 4


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    with RankPool(SIZE, hosts=["a", "a", "b", "b"]) as pool:
        pool.run(hvd.init)
        yield pool


def tensor_of(rank: int, dtype: torch.dtype, shape: tuple[int, ...] = (3, 5)) -> Tensor:
    random = torch.Generator().manual_seed(rank)
    return torch.randint(-9, 9, shape, generator=random).to(dtype)


def inputs(dtype: torch.dtype, shape: tuple[int, ...] = (3, 5)) -> Tensor:
    return torch.stack([tensor_of(rank, dtype, shape) for rank in range(SIZE)])


def test_every_rank_knows_where_it_is(ranks: RankPool) -> None:
    places = ranks.run(place)
    assert [one[:2] for one in places] == [(rank, SIZE) for rank in range(SIZE)]
    assert [one[2:] for one in places] == [
        (0, 2, 0, 2, True),
        (1, 2, 0, 2, True),
        (0, 2, 1, 2, True),
        (1, 2, 1, 2, True),
    ]


def place() -> tuple[object, ...]:
    return (
        hvd.rank(),
        hvd.size(),
        hvd.local_rank(),
        hvd.local_size(),
        hvd.cross_rank(),
        hvd.cross_size(),
        hvd.is_homogeneous(),
    )


@pytest.mark.parametrize("op", ["Sum", "Average", "Min", "Max", "Product"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int16, torch.int64]
)
def test_allreduce(ranks: RankPool, dtype: torch.dtype, op: str) -> None:
    stack = inputs(dtype).double()
    expected = {
        "Sum": stack.sum(0),
        "Average": stack.mean(0) if dtype.is_floating_point else (stack.sum(0) / SIZE).trunc(),
        "Min": stack.amin(0),
        "Max": stack.amax(0),
        "Product": stack.prod(0),
    }[op]
    for result in ranks.run(allreduce, dtype, op):
        assert result.dtype == dtype
        torch.testing.assert_close(result.double(), expected, rtol=1e-2, atol=0)


def allreduce(dtype: torch.dtype, op: str) -> Tensor:
    tensor = tensor_of(hvd.rank(), dtype)
    before = tensor.clone()
    result = hvd.allreduce(tensor, name="t", op=getattr(hvd, op))
    assert torch.equal(tensor, before)
    assert hvd.allreduce_(tensor, name="t", op=getattr(hvd, op)) is tensor
    assert torch.equal(tensor, result)
    return result


def test_scale_factors_shapes_and_groups(ranks: RankPool) -> None:
    stack = inputs(torch.float64)
    for scaled, scalar, empty, transposed, group in ranks.run(special_allreduces):
        torch.testing.assert_close(scaled, stack.mean(0) * 6)
        assert scalar == sum(range(SIZE))
        assert empty.shape == (0, 3)
        torch.testing.assert_close(transposed, stack.sum(0).t())
        for i, one in enumerate(group):
            torch.testing.assert_close(
                one, torch.full((i + 1,), float(sum(range(SIZE)) + SIZE * i))
            )


def special_allreduces() -> tuple[Any, ...]:
    tensor = tensor_of(hvd.rank(), torch.float64)
    group = [torch.full((i + 1,), float(hvd.rank() + i)) for i in range(3)]
    return (
        hvd.allreduce(tensor, prescale_factor=2.0, postscale_factor=3.0),
        hvd.allreduce(torch.tensor(float(hvd.rank())), op=hvd.Sum).item(),
        hvd.allreduce(torch.zeros(0, 3)),
        hvd.allreduce(tensor.t(), average=False),
        hvd.grouped_allreduce(group, op=hvd.Sum),
    )


def test_a_group_of_several_dtypes(ranks: RankPool) -> None:
    total = sum(2**53 + rank for rank in range(SIZE))  # not exact in any float
    for results, in_place in ranks.run(reduce_mixed_groups):
        assert [one.dtype for one in results] == [torch.float32, torch.int64, torch.float16]
        assert [one.item() for one in results] == [SIZE, total, 2 * SIZE]
        assert [one.item() for one in in_place] == [SIZE, total, 2 * SIZE]


def reduce_mixed_groups() -> tuple[list[Tensor], list[Tensor]]:
    group = [torch.ones(1), torch.tensor([2**53 + hvd.rank()]), torch.ones(1).half() * 2]
    results = hvd.grouped_allreduce(group, op=hvd.Sum)
    return results, hvd.grouped_allreduce_(group, name="in place", op=hvd.Sum)


def test_gathers(ranks: RankPool) -> None:
    rows = [torch.full((rank, 2), rank) for rank in range(SIZE)]
    for rank, (gathered, from_two, parts, objects, value) in enumerate(ranks.run(gathers)):
        assert torch.equal(gathered, torch.cat(rows))
        assert torch.equal(from_two, torch.full((2, 2), 2))
        received, counts = parts
        assert counts.tolist() == [rank] * SIZE
        assert received.tolist() == [other for other in range(SIZE) for _ in range(rank)]
        assert objects == [{"rank": other, "name": "é"} for other in range(SIZE)]
        assert value == {"step": 7}


def gathers() -> tuple[Any, ...]:
    rank = hvd.rank()
    splits = torch.arange(SIZE)
    return (
        hvd.allgather(torch.full((rank, 2), rank)),
        hvd.broadcast(torch.full((2, 2), rank), root_rank=2),
        hvd.alltoall(torch.full((int(splits.sum()),), rank), splits),
        hvd.allgather_object({"rank": rank, "name": "é"}),
        hvd.broadcast_object({"step": 7} if rank == 1 else None, root_rank=1),
    )


def test_reducescatter(ranks: RankPool) -> None:
    stack = inputs(torch.float32, (6, 2)).double()
    results = ranks.run(reducescatter)
    assert [len(one) for one, _ in results] == [2, 2, 1, 1]
    torch.testing.assert_close(torch.cat([one for one, _ in results]).double(), stack.mean(0))
    torch.testing.assert_close(torch.cat([one[0] for _, one in results]).double(), stack.sum(0))


def reducescatter() -> tuple[Any, ...]:
    tensor = tensor_of(hvd.rank(), torch.float32, (6, 2))
    return hvd.reducescatter(tensor), hvd.grouped_reducescatter([tensor, tensor], op=hvd.Sum)


def test_gradients_flow_through_collectives(ranks: RankPool) -> None:
    for rank, gradients in enumerate(ranks.run(gradients_of_collectives)):
        reduced, gathered, broadcast, exchanged, scattered = gradients
        # Rank r's loss is (r + 1) times the sum of what it received.
        assert reduced == [float(sum(range(1, SIZE + 1)))] * 2
        assert gathered == [sum(range(1, SIZE + 1)) / SIZE] * 2
        assert broadcast == ([sum(range(1, SIZE + 1)) / SIZE] * 2 if rank == 1 else [0.0] * 2)
        assert exchanged == [1.0, 2.0, 3.0, 4.0]
        assert scattered == [1.0, 2.0, 3.0, 4.0]


def gradients_of_collectives() -> list[list[float]]:
    calls: tuple[tuple[int, Callable[[Tensor], Any]], ...] = (
        (2, lambda x: hvd.allreduce(x, op=hvd.Sum)),
        (2, hvd.allgather),
        (2, lambda x: hvd.broadcast(x, root_rank=1)),
        (SIZE, hvd.alltoall),
        (SIZE, hvd.reducescatter),
    )
    gradients = []
    for size, call in calls:
        x = torch.ones(size, requires_grad=True)
        ((hvd.rank() + 1) * call(x)).sum().backward()
        assert x.grad is not None
        gradients.append(x.grad.tolist())
    return gradients


def test_many_tensors_in_another_order_on_each_rank(ranks: RankPool) -> None:
    expected = [float(SIZE * i + sum(range(SIZE))) for i in range(50)]
    assert ranks.run(in_any_order) == [expected] * SIZE


def in_any_order() -> list[float]:
    found = []
    for _ in range(3):
        order = torch.randperm(50, generator=torch.Generator().manual_seed(hvd.rank())).tolist()
        handles = {
            i: hvd.allreduce_async(torch.full((7,), float(i + hvd.rank())), name=str(i), op=hvd.Sum)
            for i in order
        }
        found = [hvd.synchronize(handles[i])[3].item() for i in range(50)]
    return found


def test_groups_in_two_process_sets_at_once(ranks: RankPool) -> None:
    for rank, (reduced, gathered) in enumerate(ranks.run(groups_in_process_sets)):
        members = [one for one in range(SIZE) if one % 2 == rank % 2]
        assert reduced == [float(sum(members) + 2 * i) for i in range(3)]
        assert gathered == [[one + i for one in members] for i in range(3)]


def groups_in_process_sets() -> tuple[list[float], list[list[int]]]:
    sets = [hvd.add_process_set([one, one + 2]) for one in range(2)]
    own = sets[hvd.rank() % 2]
    for _ in range(20):  # which rank's tensors come first differs
        sums = hvd.grouped_allreduce(
            [torch.tensor(float(hvd.rank() + i)) for i in range(3)], op=hvd.Sum, process_set=own
        )
        rows = hvd.grouped_allgather(
            [torch.tensor([hvd.rank() + i]) for i in range(3)], process_set=own
        )
    hvd.barrier()
    for one in sets:
        hvd.remove_process_set(one)
    return [one.item() for one in sums], [one.tolist() for one in rows]


def test_unnamed_calls_of_a_process_set_do_not_count_for_all_ranks(ranks: RankPool) -> None:
    for sums in ranks.run(unnamed_in_two_sets):
        assert sums == [SIZE, 100 * SIZE]


def unnamed_in_two_sets() -> list[float]:
    first = hvd.add_process_set([0])
    if hvd.rank() == 0:
        hvd.allreduce(torch.zeros(1), process_set=first)
        hvd.barrier(process_set=first)
    values = [torch.tensor(value) for value in (1.0, 100.0)]
    handles = [hvd.allreduce_async(one, op=hvd.Sum) for one in values]
    hvd.barrier()
    sums = [hvd.synchronize(one).item() for one in handles]
    hvd.remove_process_set(first)
    return sums


def test_process_sets(ranks: RankPool) -> None:
    results = ranks.run(process_sets)
    assert [one[0] for one in results] == [None, 3.0 + 1.0, None, 3.0 + 1.0]
    assert [one[1] for one in results] == [0.0 + 2.0, None, 0.0 + 2.0, None]
    assert [one[2] for one in results] == [2.0, None, 2.0, None]


def process_sets() -> list[float | None]:
    odd = hvd.add_process_set([1, 3])
    even = hvd.add_process_set(hvd.ProcessSet([2, 0]))
    value = torch.tensor(float(hvd.rank()))
    sums = [
        hvd.allreduce(value, op=hvd.Sum, process_set=one).item() if one.included() else None
        for one in (odd, even)
    ]
    root = hvd.broadcast(value, 2, process_set=even).item() if even.included() else None
    hvd.barrier()
    assert hvd.remove_process_set(odd)
    assert hvd.remove_process_set(even)
    assert not hvd.remove_process_set(hvd.global_process_set)
    return [*sums, root]


def test_join_with_uneven_data(ranks: RankPool) -> None:
    for rank, (sums, last) in enumerate(ranks.run(joined_sums)):
        assert sums == [float(SIZE - i) for i in range(rank + 1)]
        assert last == SIZE - 1


def joined_sums() -> tuple[list[float], int]:
    sums = [hvd.allreduce(torch.ones(2), op=hvd.Sum)[0].item() for _ in range(hvd.rank() + 1)]
    return sums, hvd.join()


def test_mismatches_are_errors_on_every_rank(ranks: RankPool) -> None:
    for errors in ranks.run(mismatches):
        assert errors == [
            "allreduce.x: ranks differ in shape: [0] on rank 0; [1] on rank 1; [2] on rank 2; "
            "[3] on rank 3",
            "allreduce.x: ranks differ in dtype: float32 on ranks 0, 2, 3; int32 on rank 1",
            "allreduce.x: ranks differ in op: sum on ranks 0, 2, 3; max on rank 1",
            "broadcast.x: ranks differ in root: 0 on ranks 0, 2, 3; 1 on rank 1",
        ]


def mismatches() -> list[str]:
    rank = hvd.rank()
    calls = (
        lambda: hvd.allreduce(torch.zeros(rank), name="x"),
        lambda: hvd.allreduce(torch.zeros(1, dtype=torch.int32 if rank == 1 else None), name="x"),
        lambda: hvd.allreduce(torch.zeros(1), name="x", op=hvd.Max if rank == 1 else hvd.Sum),
        lambda: hvd.broadcast(torch.zeros(1), root_rank=int(rank == 1), name="x"),
    )
    errors = []
    for call in calls:
        with pytest.raises(hvd.HorovodInternalError) as caught:
            call()
        errors.append(str(caught.value))
    return errors


def test_a_name_that_is_pending(ranks: RankPool) -> None:
    ranks.run(submit_twice)


def submit_twice() -> None:
    tensor = torch.ones(1)
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(tensor, name="twice")
        with pytest.raises(ValueError, match=r"'allreduce\.twice' is submitted again before"):
            hvd.allreduce_async(tensor, name="twice")
        assert not hvd.poll(handle)
    hvd.barrier()
    if hvd.rank() != 0:
        handle = hvd.allreduce_async(tensor, name="twice")
    assert hvd.synchronize(handle) == 1
    with pytest.raises(ValueError, match="unknown, or was synchronized"):
        hvd.poll(handle)
