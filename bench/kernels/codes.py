"""Products with matrices of codes beside int8 and bfloat16 matrices of the same shape.

    python -m bench.kernels.codes [--threads N] [--format NAME] [--matrix NAME] [--rows N ...]
        [--save]

Weights come from memory, as in `bench.kernels.matmul`. The formats take turns, so `of_int8`, the
median of the ratios of rounds to those of `--quantization int8`, compares what ran side by side.
`of_read` is the share of the read bandwidth that the stored bytes take.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from bench import record
from bench.kernels.matmul import COLD_BYTES, MODELS, ROUND_SECONDS, options
from bench.kernels.rounds import load_and_measure_limits, seconds_of
from taco_kernels.cpu.coded_matrix import CodedMatrix
from taco_kernels.cpu.matmul import EncodedRows, multiply
from taco_kernels.cpu.packed_matrix import PackedMatrix, WeightMatrix
from taco_kernels.group_codes import CodeKind, GroupCodes, ScaleSteps
from taco_kernels.library import CpuKernels

ROWS = (1, 4, 16, 32, 256, 1024)


@dataclass(frozen=True, slots=True)
class Format:
    """How a checkpoint format keeps a matrix.

    Attributes:
        zero: of all codes; "any" where each group has its own.
        bits: of int8 codes, as of a CodeLayout.
        groups_per_unit: of scales that are steps of units, and of minima; 0: scales are float16.
    """

    kind: CodeKind
    group: int
    zero: int | str | None = None
    has_minima: bool = False
    groups_per_unit: int = 0
    bits: int = 8

    def codes(self, n: int, k: int) -> GroupCodes:
        """Returns random codes [n, k]."""
        bits = torch.randint(0, 256, (n, k), dtype=torch.uint8)
        codes = bits & 15 if self.kind == "int4" else bits.view(torch.int8)
        if self.bits != 8:
            codes = codes >> 8 - self.bits
        grouped = (n, -(-k // self.group))
        found = GroupCodes(self.kind, codes, self.group, _halves(grouped))
        if self.groups_per_unit:
            return self._with_steps(found, grouped)
        if self.zero is None:
            return found
        zeros = torch.randint(0, 16, grouped, dtype=torch.int16)
        return replace(found, zeros=zeros if self.zero == "any" else torch.full_like(zeros, 8))

    def _with_steps(self, codes: GroupCodes, grouped: tuple[int, int]) -> GroupCodes:
        n, num_groups = grouped
        units = (n, num_groups // self.groups_per_unit)
        steps = torch.randint(0, 64, grouped, dtype=torch.uint8)
        kept = ScaleSteps(
            self.groups_per_unit,
            steps if self.has_minima else steps.view(torch.int8),
            _halves(units),
            steps if self.has_minima else None,
            _halves(units) if self.has_minima else None,
        )
        return replace(codes, scales=kept.scales(), minima=kept.minima(), steps=kept)


def _halves(shape: tuple[int, int]) -> Tensor:
    return (torch.rand(shape) / 64).half().float()


FORMATS = {
    "gptq": Format("int4", 128, zero=8),
    "gptq_g32": Format("int4", 32, zero=8),
    "awq": Format("int4", 128, zero="any"),
    "q4_k": Format("int4", 32, has_minima=True, groups_per_unit=8),
    "q5_0": Format("int8", 32, bits=5),
    "q6_k": Format("int8", 16, groups_per_unit=16, bits=6),
    "q8_0": Format("int8", 32),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--format", choices=FORMATS, action="append")
    parser.add_argument("--matrix", action="append", help="qkv, out, gate_up, down or lm_head")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    kernels, roof, figures = load_and_measure_limits(args.threads)
    read = roof.read_gb_per_s["all_threads"] * 1e9
    figures["products"] = []
    for name in args.matrix or MODELS["0.5b"]:
        makers = makers_of(kernels, name, args.format or list(FORMATS))
        for rows in args.rows:
            for line in measure(kernels, name, makers, rows, args.rounds, read):
                figures["products"].append({"matrix": name, **line})
                print("  ".join(f"{key} {value}" for key, value in line.items()), flush=True)
    if args.save:
        record.save("cpu_codes", figures)


Matrices = list[WeightMatrix]


def makers_of(kernels: CpuKernels, name: str, formats: list[str]) -> dict[str, Matrices]:
    """Returns copies of a matrix in each format; together they exceed the caches."""
    n, k, epilogue = MODELS["0.5b"][name]
    weight, gated = torch.randn(n, k, dtype=torch.bfloat16), epilogue == "gate"
    found: dict[str, Matrices] = {
        "int8": _copies(lambda: PackedMatrix.from_tensor(kernels, weight, torch.int8, gated=gated))
    }
    for each in formats:
        chosen = FORMATS[each]
        columns = chosen.group * max(chosen.groups_per_unit, 1)
        codes = chosen.codes(n, -(-k // columns) * columns)
        make = partial(
            CodedMatrix.from_codes, kernels, codes, scale_type="F16",
            zero=chosen.zero if isinstance(chosen.zero, int) else None,
            bits=8 if kernels.has_tiles else chosen.bits, operands=torch.int8, gated=gated,
        )  # fmt: skip
        found[each] = _copies(make)
    return found


def _copies(make: Callable[[], WeightMatrix]) -> Matrices:
    first = make()
    return [first, *(make() for _ in range(COLD_BYTES // first.nbytes))]


def measure(
    kernels: CpuKernels,
    name: str,
    matrices: dict[str, Matrices],
    rows: int,
    rounds: int,
    read: float,
) -> list[dict[str, float | str]]:
    n, _, epilogue = MODELS["0.5b"][name]
    calls = {}
    for each, copies in matrices.items():
        k = copies[0].shape[1]
        x = EncodedRows(kernels, torch.randn(rows, k), torch.int8)
        call = partial(multiply, kernels, x, **options(kernels, (n, k, epilogue), torch.int8, rows))
        calls[each] = [partial(call, copy) for copy in copies]
    seconds: dict[str, list[float]] = {each: [] for each in calls}
    for _ in range(rounds):
        for each, turns in calls.items():
            seconds[each].append(seconds_of(turns, ROUND_SECONDS))
    lines: list[dict[str, float | str]] = []
    for each, found in seconds.items():
        size = matrices[each][0].nbytes
        ratio = statistics.median(a / b for a, b in zip(found, seconds["int8"], strict=True))
        lines.append(
            {
                "format": each,
                "rows": rows,
                "us": round(min(found) * 1e6, 1),
                "of_int8": round(ratio, 3),
                "mb": round(size / 1e6, 2),
                "of_read": round(size / read / min(found), 3),
            }
        )
    return lines


if __name__ == "__main__":
    main()
