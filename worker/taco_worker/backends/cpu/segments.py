"""Segments of k: how tensor-parallel processes can compute the bits of one process.

Where they divide the columns of a product's input, each process has some of the sum over k. Such a
sum is cut into equal segments. Each is summed from zero, and their sums are added as a binary tree
(kernels/taco_kernels/cpu/csrc/matmul/matrix.h), so the bits do not depend on which process has
which segments. All other products keep the plain order of k.

- int8 needs no segments: processes add sums of whole numbers, which are exact, and scale the
  totals. They must agree on the scale and the outliers of a row before they encode its columns.
- Experts have none: a process holds whole experts, and their outputs are added in the order of the
  router's choice.
- The torch and Triton back ends ignore segments: they promise no bits between numbers of processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm

from taco_kernels.segments import MAX_SEGMENTS, TILE_K
from taco_worker.backends.cpu.lowered_ops import MatrixType
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.linear import Linear

# AMX stores the sums of a segment and adds them to others. In a trial with 1024 rows, segments of
# 3.5 steps made a product 74% slower, of 7 steps 23%, and of 14 steps 0 to 5%.
MIN_STEPS = 14


def segments_of(plan: ModelPlan, types: Mapping[str, MatrixType]) -> dict[str, int]:
    """The number of segments of each matrix that has more than one.

    Args:
        types: of the matrices that products use, by parameter.
    """
    number = num_segments(plan)
    weights = {op.weight for op in _sharded(plan) if types[op.weight] != "i8"}
    return dict.fromkeys(weights, number) if number > 1 else {}


def num_segments(plan: ModelPlan) -> int:
    """Segments of every product with a `shard_unit`: 1, 2, 4 or 8.

    This is the greatest number of tensor-parallel processes that can compute the bits of one
    process. It is the same for all products: a process has a share of each, so the product with
    the fewest segments limits their number, and more segments of another product would only cost
    time.
    """
    return min((most_segments(op.x.size, op.shard_unit or 1) for op in _sharded(plan)), default=1)


def most_segments(k: int, unit: int) -> int:
    """The greatest power of two, up to 8, of equal segments of `k` columns.

    A segment is 14 or more whole tile steps of bf16.

    Args:
        unit: columns that no segment may cut: those of a head, or those that share a scale.
    """
    whole = lcm(unit, TILE_K)
    count = MAX_SEGMENTS
    while count > 1 and (k % (count * whole) or k < count * MIN_STEPS * TILE_K):
        count //= 2
    return count


def _sharded(plan: ModelPlan) -> list[Linear]:
    return [op for op in plan.ops if isinstance(op, Linear) and op.shard_unit is not None]
