"""Sums of sparse gradients: their rows are gathered, not made dense."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from taco_train.lightcc.horovod.ops import Average, ReduceOp, choose_op
from taco_train.lightcc.horovod.process_sets import ProcessSet, global_process_set
from taco_train.lightcc.horovod.torch.gathers import allgather_async
from taco_train.lightcc.horovod.torch.handles import synchronize


def sparse_allreduce_async(
    tensor: Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Start to add or average the ranks' sparse tensors.

    Args:
        tensor: sparse COO; the ranks may have different numbers of rows.

    Returns:
        A function that waits and returns the sparse result.

    Raises:
        ValueError: the operation is neither Sum nor Average, or the tensor is of another layout.
    """
    layout = getattr(tensor, "layout", type(tensor).__name__)
    if layout != torch.sparse_coo:
        raise ValueError(
            f"sparse_allreduce_async.{name}: a tensor of layout torch.sparse_coo is needed, not "
            f"{layout}"
        )
    chosen = choose_op(op, None)
    if chosen not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        raise ValueError(f"sparse tensors can be added and averaged, not combined by {chosen.name}")
    coalesced = tensor.coalesce()
    indices = allgather_async(coalesced.indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(coalesced.values(), f"{name}.values", process_set)
    divisor = (process_set.size() or 1) if chosen is Average else 1

    def wait() -> Tensor:
        all_indices, all_values = synchronize(indices), synchronize(values)
        result = torch.sparse_coo_tensor(
            all_indices.t(), all_values / divisor, tensor.shape, check_invariants=True
        )
        return result.coalesce()

    return wait
