"""Cost of outliers in int8 activations: rows with them, compared with rows without.

    python -m bench.kernels.outliers [--threads N] [--outliers N ...] [--rows N ...] [--pairs N]
        [--save]

Every row has the given number of outliers, at the same columns of all rows or at different ones:
the kernels multiply their high parts apart from the others. Each pair takes the processor time of
encoding and product of both kinds of rows, one right after the other; the order changes with each
pair. A figure is the ratio with its 95% interval. Other load on the machine changes processor time
little. Shapes are those of Qwen2-0.5B. Weights come from memory: each call uses another copy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from bench import record
from bench.interval import ratio_interval
from bench.kernels.matmul import COLD_BYTES, MODELS
from bench.kernels.rounds import add_threads_flag, load_kernels
from taco_kernels.cpu.matmul import EncodedRows, multiply
from taco_kernels.cpu.packed_matrix import PackedMatrix
from taco_kernels.library import CpuKernels

ROWS = (1, 32, 128, 1024)
OUTLIERS = (4, 16)
MATRICES = ("qkv", "gate_up", "down")
SIZE = 1000.0  # of an outlier; the other numbers are normally distributed
CALL_SECONDS = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_threads_flag(parser)
    parser.add_argument(
        "--outliers",
        type=int,
        nargs="+",
        default=OUTLIERS,
        help=f"numbers of outliers in each row (default {' '.join(map(str, OUTLIERS))})",
    )
    parser.add_argument(
        "--rows",
        type=int,
        nargs="+",
        default=ROWS,
        help=f"numbers of rows (default {' '.join(map(str, ROWS))})",
    )
    parser.add_argument(
        "--pairs",
        type=int,
        default=7,
        help="pairs of each product, at least 2 (default %(default)s)",
    )
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kernels = load_kernels(args.threads)
    products = []
    for name in MATRICES:
        n, k, epilogue = MODELS["0.5b"][name]
        weight = torch.randn(n, k, dtype=torch.bfloat16)
        matrices = [
            PackedMatrix.from_tensor(kernels, weight, torch.int8, gated=epilogue == "gate")
            for _ in range(max(1, COLD_BYTES // (n * k)))
        ]
        for rows in args.rows:
            plain = torch.randn(rows, k)
            for count in args.outliers:
                for same_columns in (True, False):
                    planted = plant(plain, count, same_columns=same_columns)
                    line = compare(kernels, matrices, planted, plain, args.pairs)
                    product = {
                        "matrix": name,
                        "rows": rows,
                        "outliers": count,
                        "same_columns": same_columns,
                        **line,
                    }
                    products.append(product)
                    print("  ".join(f"{key} {value}" for key, value in product.items()), flush=True)
    if args.save:
        figures = {"isa": kernels.isa, "threads": args.threads, "products": products}
        record.save_by_isa("cpu_outliers", figures)


def plant(rows: Tensor, count: int, *, same_columns: bool) -> Tensor:
    """A copy of rows [num_rows, k] with `count` outliers in each."""
    planted = rows.clone()
    columns = torch.rand(rows.shape).argsort(dim=1)[:, :count]
    if same_columns:
        columns = columns[:1].expand(rows.shape[0], -1)
    return planted.scatter_(1, columns, SIZE)


def compare(
    kernels: CpuKernels,
    matrices: Sequence[PackedMatrix],
    planted: Tensor,
    plain: Tensor,
    pairs: int,
) -> dict[str, float]:
    """The time of rows with outliers relative to rows without."""
    kinds = {"plain": plain, "planted": planted}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for pair in range(-1, pairs):
        for kind in reversed(kinds) if pair % 2 else kinds:
            elapsed = seconds_of(kernels, matrices, kinds[kind])
            if pair >= 0:  # the first pair warms up
                seconds[kind].append(elapsed)
    interval = ratio_interval(seconds["planted"], seconds["plain"])
    return {
        "us": round(1e6 * min(seconds["plain"]), 1),
        "ratio": round(interval.ratio, 3),
        "low": round(interval.low, 3),
        "high": round(interval.high, 3),
    }


def seconds_of(kernels: CpuKernels, matrices: Sequence[PackedMatrix], rows: Tensor) -> float:
    """Processor seconds of one encoding and product, of all threads."""
    calls = 0
    start = time.process_time()
    while (elapsed := time.process_time() - start) < CALL_SECONDS or not calls:
        matrix = matrices[calls % len(matrices)]
        activation = "silu" if matrix.gated else "none"
        multiply(kernels, EncodedRows(kernels, rows, torch.int8), matrix, activation=activation)
        calls += 1
    return elapsed / calls


if __name__ == "__main__":
    main()
