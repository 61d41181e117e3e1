"""The grouped product of a mixture of experts, compared with the dense product, on the CPU.

    python -m bench.kernels.experts [--threads N] [--model NAME] [--type NAME] [--rows N ...]
        [--save]

A line times one layer's experts: gate and up with SiLU, down, and the weighted sums. Rows choose
experts evenly, and one row other experts in each call, so that the weights come from memory. Each
round times the dense product after it: one matrix that stacks all the experts that the rows have
chosen, times as many rows as each of these experts has, hence the same bytes and operations. A
figure is the best round. `of_dense` is the dense product's time over the grouped one's; `share` is
relative to the machine's bound: the chosen experts' weights read at the measured bandwidth, or the
operations at the measured peak of the instruction set, whichever takes longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bench import record
from bench.kernels.matmul import PEAKS
from bench.kernels.rounds import (
    DTYPES,
    Call,
    Limits,
    add_shape_flags,
    load_and_measure_limits,
    make_parser,
    show,
    time_in_turn,
)
from taco_kernels.cpu.experts import PackedExperts, multiply_experts
from taco_kernels.cpu.matmul import EncodedRows, multiply
from taco_kernels.cpu.packed_matrix import PackedMatrix
from taco_kernels.library import CpuKernels
from taco_kernels.native.memory import Scratch

ROWS = (1, 8, 32, 128, 1024)
ROUND_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Shape:
    num_experts: int
    top_k: int
    hidden_size: int
    inner_size: int

    @property
    def elements(self) -> int:
        """Weights of one expert."""
        return 3 * self.hidden_size * self.inner_size


MODELS = {
    "olmoe": Shape(64, 8, 2048, 1024),
    "mixtral_tenth": Shape(8, 2, 2048, 2816),  # a tenth of Mixtral 8x7B's experts
}


def main() -> None:
    parser = make_parser(__doc__, rounds=5)
    add_shape_flags(parser, MODELS, types_of="weights")
    parser.add_argument(
        "--rows",
        type=int,
        nargs="+",
        default=ROWS,
        help=f"numbers of rows (default {' '.join(map(str, ROWS))})",
    )
    args = parser.parse_args()
    kernels, roof, figures = load_and_measure_limits(args.threads)
    figures["layers"] = []
    for model in args.model or MODELS:
        for type_name in args.type or DTYPES:
            limits = Limits.of(roof, PEAKS[kernels.isa][type_name])
            for line in measure(
                kernels, MODELS[model], DTYPES[type_name], args.rows, args.rounds, limits
            ):
                layer = {"model": model, "type": type_name, **line}
                figures["layers"].append(layer)
                show(layer)
    if args.save:
        record.save_by_isa("cpu_experts", figures)


def measure(
    kernels: CpuKernels,
    shape: Shape,
    dtype: torch.dtype,
    row_counts: Sequence[int],
    rounds: int,
    limits: Limits,
) -> list[dict[str, float]]:
    count, hidden, inner = shape.num_experts, shape.hidden_size, shape.inner_size
    gate_up = PackedExperts(count, 2 * inner, hidden, dtype, gated=True)
    down = PackedExperts(count, hidden, inner, dtype)
    for expert in range(count):
        gate_up.pack(kernels, expert, torch.randn(2 * inner, hidden) / hidden**0.5)
        down.pack(kernels, expert, torch.randn(hidden, inner) / inner**0.5)
    scratch = Scratch()
    lines = []
    for rows in row_counts:
        x = EncodedRows(kernels, torch.randn(rows, hidden), dtype)
        weights = torch.full((rows, shape.top_k), 1 / shape.top_k)
        choices = even_choices(shape, rows)
        num_hit = min(count, rows * shape.top_k)
        found = time_in_turn(
            [
                partial(multiply_experts, kernels, x, ids, weights, gate_up, down, scratch=scratch)
                for ids in choices
            ],
            dense_layers(kernels, shape, dtype, num_hit, rows * shape.top_k // num_hit),
            num_bytes=num_hit * shape.elements * dtype.itemsize,
            operations=2 * rows * shape.top_k * shape.elements,
            limits=limits,
            rounds=rounds,
            round_seconds=ROUND_SECONDS,
            other="dense",
        )
        of_dense = round(found["dense_us"] / found["us"], 3)
        lines.append({"rows": rows, **found, "of_dense": of_dense})
    return lines


def even_choices(shape: Shape, rows: int) -> list[Tensor]:
    """int32 [rows, top_k] for each of some calls; together they choose all experts equally."""
    pairs = rows * shape.top_k
    calls = max(1, shape.num_experts // pairs)
    return [
        ((torch.arange(pairs) + call * pairs) % shape.num_experts)
        .int()
        .view(rows, shape.top_k)
        .contiguous()
        for call in range(calls)
    ]


def dense_layers(
    kernels: CpuKernels, shape: Shape, dtype: torch.dtype, num_experts: int, rows: int
) -> list[Call]:
    """Layers of the size of `num_experts` experts, as many as all experts fill."""
    hidden, inner = shape.hidden_size, shape.inner_size
    x = EncodedRows(kernels, torch.randn(rows, hidden), dtype)
    narrow = EncodedRows(kernels, torch.randn(rows, inner), dtype)
    calls: list[Call] = []
    for _ in range(shape.num_experts // num_experts):
        gate_up = PackedMatrix(num_experts * 2 * inner, hidden, dtype, gated=True)
        down = PackedMatrix(num_experts * hidden, inner, dtype)
        for matrix, step in ((gate_up, 2 * inner), (down, hidden)):
            part = torch.randn(step, matrix.shape[1])
            for start in range(0, matrix.shape[0], step):
                matrix.pack(kernels, part, start)
        calls.append(partial(multiply_dense, kernels, x, narrow, gate_up, down))
    return calls


def multiply_dense(
    kernels: CpuKernels,
    x: EncodedRows,
    narrow: EncodedRows,
    gate_up: PackedMatrix,
    down: PackedMatrix,
) -> None:
    as_operands = x.dtype == torch.bfloat16
    multiply(kernels, x, gate_up, activation="silu", as_operands=as_operands)
    multiply(kernels, narrow, down)


if __name__ == "__main__":
    main()
