"""Matrix products of the CPU kernels, compared with this machine's limits and torch.mm.

    python -m bench.kernels.matmul [--threads N] [--model NAME] [--type NAME] [--rows N ...]
        [--save]

Every matrix has enough copies to exceed the CPU caches. They are multiplied in turn without a
pause, like a model's layers, so the weights come from memory. All numbers are random. The results
go where a step of a model puts them, to memory that exists before: `out` and `down` are added to a
residual stream, and `gate_up` of bf16 makes the operands of the next product. Each round times
TACO, torch and reads of memory one after the other. A figure is the best round, because other load
only adds time.

`of_read` is the weights' share of the read bandwidth, and `of_peak` the operations' share of the
peak of the instruction set, which was measured before; both with the same threads. `share` is the
greater one.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from bench import record
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
from taco_kernels.cpu.matmul import (
    EncodedRows,
    ProductCall,
    ProductOptions,
    empty_operands,
    multiply_in_turn,
)
from taco_kernels.cpu.packed_matrix import PackedMatrix, WeightMatrix
from taco_kernels.library import CpuKernels
from taco_kernels.native.memory import ALIGNMENT, Arena
from taco_kernels.panels import matrix_bytes

# n, k, and what is done with the product.
Shape = tuple[int, int, Literal["store", "add", "gate"]]
MODELS: dict[str, dict[str, Shape]] = {
    "0.5b": {
        "qkv": (1152, 896, "store"),
        "out": (896, 896, "add"),
        "gate_up": (9728, 896, "gate"),
        "down": (896, 4864, "add"),
        "lm_head": (151936, 896, "store"),
    },
    "7b": {
        "qkv": (12288, 4096, "store"),
        "out": (4096, 4096, "add"),
        "gate_up": (22016, 4096, "gate"),
        "down": (4096, 11008, "add"),
    },
}
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
COLD_BYTES = 640 << 20  # more than the shared cache of a server's CPU
# Weights of one call, so that starting the threads and Python take no part of the time.
CALL_BYTES = 64 << 20
ROUND_SECONDS = 0.03
# Instructions that compute a product of each type, by the roofline's names.
PEAKS = {
    "avx2": {"bf16": "avx2_fp32", "int8": "avx2_int8", "fp32": "avx2_fp32"},
    "avx512": {"bf16": "avx512_fp32", "int8": "avx512_vnni", "fp32": "avx512_fp32"},
    "avx512_bf16": {"bf16": "avx512_bf16", "int8": "avx512_vnni", "fp32": "avx512_fp32"},
    "amx": {"bf16": "amx_bf16", "int8": "amx_int8", "fp32": "avx512_fp32"},
}


def main() -> None:
    parser = make_parser(__doc__, rounds=5)
    add_shape_flags(parser, MODELS, types_of="weights")
    add_product_flags(parser, ROWS)
    args = parser.parse_args()
    kernels, roof, figures = load_and_measure_limits(args.threads)
    figures["products"] = []
    for model in args.model or MODELS:
        for name, shape in MODELS[model].items():
            if args.matrix and name not in args.matrix:
                continue
            for type_name in args.type or DTYPES:
                limits = Limits.of(roof, PEAKS[kernels.isa][type_name])
                for line in measure(kernels, shape, type_name, args.rows, args.rounds, limits):
                    product = {"model": model, "matrix": name, "type": type_name, **line}
                    figures["products"].append(product)
                    show(product)
    if args.save:
        record.save_by_isa("cpu_matmul", figures)


def add_product_flags(parser: argparse.ArgumentParser, row_counts: Sequence[int]) -> None:
    """Adds flags that choose products; `row_counts` are the default ones."""
    parser.add_argument(
        "--matrix",
        action="append",
        help="qkv, out, gate_up, down or lm_head; may be repeated (default all)",
    )
    parser.add_argument(
        "--rows",
        type=int,
        nargs="+",
        default=row_counts,
        help=f"numbers of rows (default {' '.join(map(str, row_counts))})",
    )


def measure(
    kernels: CpuKernels,
    shape: Shape,
    type_name: str,
    row_counts: Sequence[int],
    rounds: int,
    limits: Limits,
) -> list[dict[str, float]]:
    n, k, epilogue = shape
    dtype, gated = DTYPES[type_name], epilogue == "gate"
    weight = torch.randn(n, k, dtype=torch.bfloat16)
    matrices = packed_copies(kernels, weight, dtype, gated=gated)
    # torch has no common product with dynamically quantized activations.
    weights = [weight.to(dtype, copy=True) for _ in matrices] if dtype != torch.int8 else []
    lines = []
    for rows in row_counts:
        x = torch.randn(rows, k)
        calls, per_call = calls_in_turn(
            kernels,
            EncodedRows(kernels, x, dtype),
            matrices,
            options(kernels, shape, dtype, rows),
        )
        operands, out = x.to(dtype), torch.randn(rows, n).to(dtype)
        found = time_in_turn(
            calls,
            [partial(torch.mm, operands, each.T, out=out) for each in weights],
            num_bytes=n * k * dtype.itemsize,
            operations=2 * rows * n * k,
            limits=limits,
            rounds=rounds,
            round_seconds=ROUND_SECONDS,
            per_call=per_call,
        )
        lines.append({"rows": rows, **found})
    return lines


def packed_copies(
    kernels: CpuKernels, weight: Tensor, dtype: torch.dtype, *, gated: bool
) -> list[WeightMatrix]:
    n, k = weight.shape

    def make(memory: Tensor) -> WeightMatrix:
        matrix = PackedMatrix(n, k, dtype, gated=gated, memory=memory)
        matrix.pack(kernels, weight)
        return matrix

    return cold_copies(make, matrix_bytes(n, k, dtype.itemsize, gated=gated))


def cold_copies(make: Callable[[Tensor], WeightMatrix], num_bytes: int) -> list[WeightMatrix]:
    """Returns as many matrices as exceed the CPU caches, in one piece of memory like a model's.

    Args:
        make: makes a matrix in memory of `num_bytes` bytes.
    """
    arena = Arena(COLD_BYTES)
    each = -(-num_bytes // ALIGNMENT) * ALIGNMENT
    return [make(arena.take(num_bytes)) for _ in range(COLD_BYTES // each)]


def calls_in_turn(
    kernels: CpuKernels,
    rows: EncodedRows,
    matrices: Sequence[WeightMatrix],
    how: ProductOptions,
) -> tuple[list[Call], int]:
    """Returns calls that together multiply all matrices (at most a few less), and products a call.

    Args:
        matrices: made alike.
    """
    per_call = min(max(CALL_BYTES // matrices[0].nbytes, 1), len(matrices))
    products = [ProductCall(kernels, rows, matrix, **how) for matrix in matrices]
    firsts = range(0, len(products) - per_call + 1, per_call)
    return [
        partial(multiply_in_turn, kernels, products[first : first + per_call]) for first in firsts
    ], per_call


def options(kernels: CpuKernels, shape: Shape, dtype: torch.dtype, rows: int) -> ProductOptions:
    """The epilogue of a product as `multiply` takes it, with memory for its result."""
    n, _, epilogue = shape
    if epilogue == "add":
        return {"add_to": torch.randn(rows, n)}
    if epilogue == "store":
        return {"out": torch.randn(rows, n)}
    if dtype != torch.bfloat16:
        return {"out": torch.randn(rows, n // 2), "activation": "silu"}
    out = empty_operands(kernels, dtype, rows, n // 2)
    return {"out": out, "as_operands": True, "activation": "silu"}


if __name__ == "__main__":
    main()
