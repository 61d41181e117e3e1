"""Calls that cannot be are errors of the caller's rank alone: the job continues."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import taco_train.lightcc.horovod.torch as hvd
from support.train_processes import RankPool

SIZE = 2


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    with RankPool(SIZE) as pool:
        pool.run(hvd.init)
        yield pool


WRONG: dict[str, tuple[type[Exception], Callable[[], object]]] = {
    "allreduce.x: a torch tensor is needed, not list": (
        TypeError,
        lambda: hvd.allreduce([1.0], name="x"),  # type: ignore[arg-type]
    ),
    "allgather: a torch tensor is needed, not list": (
        TypeError,
        lambda: hvd.allgather([1.0]),  # type: ignore[arg-type]
    ),
    "a group is a list of tensors, not Tensor": (
        TypeError,
        lambda: hvd.grouped_allreduce(torch.ones(2)),  # type: ignore[arg-type]
    ),
    "complex64 are not supported; convert it to one of bfloat16, bool, ": (
        ValueError,
        lambda: hvd.allreduce(torch.zeros(1, dtype=torch.complex64)),
    ),
    "allreduce.b: bools have no average; use op=hvd.Max or op=hvd.Min": (
        ValueError,
        lambda: hvd.allreduce(torch.ones(1, dtype=torch.bool), name="b"),
    ),
    "layout torch.sparse_coo are not supported: use sparse_": (
        ValueError,
        lambda: hvd.allreduce(torch.ones(1).to_sparse()),
    ),
    "layout torch.sparse_coo is needed, not torch.strided": (
        ValueError,
        lambda: hvd.sparse_allreduce_async(torch.ones(1), "x", hvd.Sum),
    ),
    "tensors on meta are not supported; they must be on the CPU or": (
        ValueError,
        lambda: hvd.allreduce(torch.ones(1, device="meta")),
    ),
    "allreduce: the tensor has 65 dimensions; 64 are possible": (
        ValueError,
        lambda: hvd.allreduce(torch.ones([1] * 65)),
    ),
    "the name has 1110 characters; 1024 are possible": (
        ValueError,
        lambda: hvd.allreduce(torch.ones(1), name="x" * 1100),
    ),
    "elements of the tensor share memory": (
        ValueError,
        lambda: hvd.allreduce_(torch.ones(1).expand(4)),
    ),
    "allgather: the tensor has no first dimension; use tensor.reshape(1)": (
        ValueError,
        lambda: hvd.allgather(torch.tensor(1.0)),
    ),
    "give op or average, not both": (
        ValueError,
        lambda: hvd.allreduce(torch.zeros(1), average=True, op=hvd.Sum),
    ),
    "prescale_factor is nan; it must be a finite number": (
        ValueError,
        lambda: hvd.allreduce(torch.zeros(1), prescale_factor=float("nan")),
    ),
    "root_rank is 9; it must be from 0 to 1": (
        ValueError,
        lambda: hvd.broadcast(torch.zeros(1), root_rank=9),
    ),
    "root_rank is 0.0; it must be an integer from 0 to 1": (
        TypeError,
        lambda: hvd.broadcast(torch.zeros(1), root_rank=0.0),  # type: ignore[arg-type]
    ),
    "5 rows cannot be divided among 2 ranks": (ValueError, lambda: hvd.alltoall(torch.zeros(5))),
    "splits are [1]: 2 integers with the sum 5": (
        ValueError,
        lambda: hvd.alltoall(torch.zeros(5), [1]),
    ),
    "ranks=[0]) is not registered": (
        ValueError,
        lambda: hvd.allreduce(torch.zeros(1), process_set=hvd.ProcessSet([0])),
    ),
    "process_set is [0]; it must be what hvd.add_process_set": (
        TypeError,
        lambda: hvd.barrier([0]),  # type: ignore[arg-type]
    ),
    "are [-1, 0]; there must be one or more, from 0 on": (
        ValueError,
        lambda: hvd.add_process_set([-1, 0]),
    ),
    "the ranks of a process set are 'ab'; they must be integers": (
        TypeError,
        lambda: hvd.add_process_set("ab"),  # type: ignore[arg-type]
    ),
}


def test_wrong_calls(ranks: RankPool) -> None:
    ranks.run(call_wrongly)


def call_wrongly() -> None:
    for message, (kind, call) in WRONG.items():
        with pytest.raises(kind, match=re.escape(message)):
            call()
    with pytest.raises(hvd.HorovodInternalError, match=r"are \[0, 7\]; they must be from 0 to 1"):
        hvd.add_process_set([0, 7])
    # Of a group nothing was submitted, and no rank has lost count of what has no name.
    group = [torch.ones(1), torch.ones(1, dtype=torch.complex64)]
    with pytest.raises(ValueError, match=r"allreduce.g: tensors of torch.complex64"):
        hvd.grouped_allreduce(group, name="g")
    if hvd.rank() == 1:
        with pytest.raises(ValueError, match="complex64"):
            hvd.allreduce(group[1])
        pending = hvd.allreduce_async(torch.ones(1), name="g.1")
        with pytest.raises(ValueError, match=r"'allreduce.g.1' is submitted again"):
            hvd.grouped_allreduce([torch.ones(1)] * 2, name="g")
    hvd.barrier()
    if hvd.rank() == 0:
        pending = hvd.allreduce_async(torch.ones(1), name="g.1")
    assert hvd.synchronize(pending) == 1
    assert hvd.grouped_allreduce([torch.ones(1)] * 2, name="g") == [1, 1]
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == SIZE


def test_integers_of_other_libraries_and_inference_tensors(ranks: RankPool) -> None:
    ranks.run(unusual)


def unusual() -> None:
    assert hvd.broadcast(torch.tensor(hvd.rank()), root_rank=np.int64(1)) == 1  # type: ignore[arg-type]
    some = hvd.add_process_set(np.array([1]))  # type: ignore[arg-type]
    assert some.included() == (hvd.rank() == 1)
    hvd.remove_process_set(some)
    with torch.inference_mode():
        metric = torch.ones(3)
        assert hvd.allreduce_(metric, op=hvd.Sum) is metric
        assert metric.tolist() == [SIZE] * 3


_LEFT: list[tuple[hvd.ProcessSet, int, weakref.ref[torch.Tensor]]] = []


def test_process_sets_of_init_and_what_a_job_leaves() -> None:
    with RankPool(SIZE) as pool:
        pool.run(init_with_sets)
        pool.run(leave_a_handle)  # when all have submitted: the first to shut down ends the job


def init_with_sets() -> None:
    with pytest.raises(ValueError, match=r'is \[\[0, 1\]\]; it must be "dynamic" or a list of'):
        hvd.init(process_sets=[[0, 1]])  # type: ignore[list-item]
    one = hvd.ProcessSet([1])
    with pytest.raises(hvd.HorovodInternalError, match=r"are \[0, 7\]; they must be from 0 to 1"):
        hvd.init(process_sets=[one, hvd.ProcessSet([0, 7])])
    assert not hvd.is_initialized()
    hvd.init(process_sets=[one])
    assert one.included() == (hvd.rank() == 1)
    tensor = torch.ones(1)
    handle = hvd.allreduce_async(tensor, name=f"of {hvd.rank()}")
    _LEFT.append((one, handle, weakref.ref(tensor)))


def leave_a_handle() -> None:
    one, handle, tensor = _LEFT.pop()
    hvd.shutdown()
    assert one.process_set_id is None
    # Tensors of handles without synchronize() are not kept: elastic jobs end many times.
    with pytest.raises(ValueError, match="is unknown, or was synchronized"):
        hvd.poll(handle)
    gc.collect()
    assert tensor() is None


class Limits(NamedTuple):
    least: float
    most: float


def test_wrong_optimizers_and_models(ranks: RankPool) -> None:
    ranks.run(pass_other_objects)


def pass_other_objects() -> None:
    model = nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), model.named_parameters()
    )
    with pytest.raises(ValueError, match="is one of DistributedOptimizer already"):
        hvd.DistributedOptimizer(optimizer)
    with pytest.raises(ValueError, match=r"such as model.state_dict\(\), not Linear"):
        hvd.broadcast_parameters(model, root_rank=0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an optimizer of torch is needed, not NoneType"):
        hvd.broadcast_optimizer_state(None, root_rank=0)  # type: ignore[arg-type]
    if hvd.rank() == 0:  # which finds out before it sends anything
        optimizer.param_groups[0]["limits"] = Limits(0.0, 1.0)
        with pytest.raises(TypeError, match=r"a value of type .*\.Limits cannot be sent"):
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    with pytest.raises(TypeError, match="model must be a torch Module, not list"):
        hvd.elastic.TorchState([model])  # type: ignore[arg-type]
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == SIZE


def test_without_init() -> None:
    with pytest.raises(ValueError, match=r"call hvd.init\(\) first"):
        hvd.rank()
    assert not hvd.is_initialized()
