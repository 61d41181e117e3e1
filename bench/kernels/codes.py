"""Products with matrices of codes, compared with int8 matrices of the same shape.

    python -m bench.kernels.codes [--threads N] [--format NAME] [--matrix NAME] [--rows N ...]
        [--save]

Weights come from memory, as in `bench.kernels.matmul`. Operands are int8 where the instruction set
multiplies the format's codes with them, and bfloat16 otherwise. The formats take turns, so
`of_int8`, the median of the ratios of rounds to those of `--quantization int8`, compares what ran
side by side. `of_read` is the share of the read bandwidth that the stored bytes take.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from bench import record
from bench.kernels.matmul import (
    MODELS,
    ROUND_SECONDS,
    Shape,
    add_product_flags,
    calls_in_turn,
    cold_copies,
    options,
    packed_copies,
)
from bench.kernels.rounds import (
    DTYPES,
    Call,
    load_and_measure_limits,
    make_parser,
    memory_reader,
    seconds_of,
    show,
)
from taco_kernels.code_layout import CodeLayout, RowSegment, coded_bytes, takes_int8
from taco_kernels.cpu.coded_matrix import CodedMatrix
from taco_kernels.cpu.matmul import EncodedRows
from taco_kernels.cpu.packed_matrix import WeightMatrix
from taco_kernels.group_codes import GroupCodes, ScaleSteps
from taco_kernels.library import CpuKernels

ROWS = (1, 4, 16, 32, 256, 1024)
# How checkpoint formats keep a matrix.
FORMATS = {
    "gptq": CodeLayout("int4", 128, has_zeros=True, zero=8, scale_type="F16"),
    "gptq_g32": CodeLayout("int4", 32, has_zeros=True, zero=8, scale_type="F16"),
    "awq": CodeLayout("int4", 128, has_zeros=True, scale_type="F16"),
    "q4_k": CodeLayout(
        "int4", 32, has_minima=True, scale_type="F16", step_type="U8", groups_per_unit=8
    ),
    "q5_0": CodeLayout("int8", 32, scale_type="F16", bits=5),
    "q6_k": CodeLayout("int8", 16, scale_type="F16", step_type="I8", groups_per_unit=16, bits=6),
    "q8_0": CodeLayout("int8", 32, scale_type="F16"),
}


def main() -> None:
    parser = make_parser(__doc__, rounds=7)
    parser.add_argument(
        "--format",
        choices=FORMATS,
        action="append",
        help="formats of the codes; may be repeated (default all)",
    )
    add_product_flags(parser, ROWS)
    args = parser.parse_args()
    kernels, _, figures = load_and_measure_limits(args.threads)
    read = partial(memory_reader().bytes_per_second, args.threads)
    figures["products"] = []
    for name in args.matrix or MODELS["0.5b"]:
        shape = MODELS["0.5b"][name]
        matrices = matrices_by_format(kernels, shape, args.format or FORMATS)
        for rows in args.rows:
            for line in measure(kernels, shape, matrices, rows, args.rounds, read):
                figures["products"].append(product := {"matrix": name, **line})
                show(product)
    if args.save:
        record.save_by_isa("cpu_codes", figures)


def matrices_by_format(
    kernels: CpuKernels, shape: Shape, formats: Iterable[str]
) -> dict[str, list[WeightMatrix]]:
    """Returns copies of a matrix as int8, then in each format.

    Copies of one format together exceed the caches. Formats whose groups share units may have more
    columns than the shape.
    """
    n, k, epilogue = shape
    weight, gated = torch.randn(n, k, dtype=torch.bfloat16), epilogue == "gate"
    found = {"int8": packed_copies(kernels, weight, torch.int8, gated=gated)}
    for name in formats:
        layout = FORMATS[name]
        columns = layout.group * max(layout.groups_per_unit, 1)
        codes = random_codes(layout, n, -(-k // columns) * columns)
        found[name] = coded_copies(kernels, layout, codes, gated=gated)
    return found


def coded_copies(
    kernels: CpuKernels, layout: CodeLayout, codes: GroupCodes, *, gated: bool
) -> list[WeightMatrix]:
    """Returns matrices with int8 operands if the instruction set takes them, else bfloat16."""
    n, k = codes.shape
    is_int8 = takes_int8(layout, k, on_tiles=kernels.has_tiles)
    if kernels.has_tiles or not is_int8:
        layout = layout.widened()
    operands = torch.int8 if is_int8 else torch.bfloat16
    rows = [RowSegment(n, layout)]

    def make(memory: Tensor) -> WeightMatrix:
        matrix = CodedMatrix(n, k, rows, operands=operands, gated=gated, memory=memory)
        matrix.pack_codes(kernels, codes)
        return matrix

    return cold_copies(make, coded_bytes(n, k, rows, gated))


def random_codes(layout: CodeLayout, n: int, k: int) -> GroupCodes:
    """Returns codes [n, k] of a layout of FORMATS."""
    if layout.kind == "int4":
        codes = torch.randint(0, 16, (n, k), dtype=torch.uint8)
    else:
        first = layout.smallest_code
        codes = torch.randint(first, first + (1 << layout.bits), (n, k), dtype=torch.int8)
    grouped = (n, -(-k // layout.group))
    found = GroupCodes(layout.kind, codes, layout.group, _halves(grouped))
    if layout.step_type is not None:
        scales = _random_steps(layout, grouped)
        return replace(found, scales=scales.scales(), minima=scales.minima(), steps=scales)
    if not layout.has_zeros:
        return found
    first, end = (0, 16) if layout.zero is None else (layout.zero, layout.zero + 1)
    return replace(found, zeros=torch.randint(first, end, grouped, dtype=torch.int16))


def _random_steps(layout: CodeLayout, grouped: tuple[int, int]) -> ScaleSteps:
    n, num_groups = grouped
    units = (n, num_groups // layout.groups_per_unit)
    steps = torch.randint(0, 64, grouped, dtype=torch.uint8)
    return ScaleSteps(
        layout.groups_per_unit,
        steps.view(torch.int8) if layout.step_type == "I8" else steps,
        _halves(units),
        steps if layout.has_minima else None,
        _halves(units) if layout.has_minima else None,
    )


def _halves(shape: tuple[int, int]) -> Tensor:
    return (torch.rand(shape) / 64).half().float()


def measure(
    kernels: CpuKernels,
    shape: Shape,
    matrices: Mapping[str, Sequence[WeightMatrix]],
    rows: int,
    rounds: int,
    read: Callable[[], float],
) -> list[dict[str, float | str]]:
    """Times products of `rows` rows; `read` measures the bandwidth in bytes a second."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    calls: dict[str, tuple[list[Call], int]] = {}
    for each, copies in matrices.items():
        dtype = copies[0].dtype
        x = EncodedRows(kernels, torch.randn(rows, copies[0].shape[1]), dtype)
        how = options(kernels, shape, dtype, rows)
        calls[each] = calls_in_turn(kernels, x, copies, how)
    seconds: dict[str, list[float]] = {each: [] for each in calls}
    bandwidth = 0.0
    for _ in range(rounds):
        for each, (turns, per_call) in calls.items():
            seconds[each].append(seconds_of(turns, ROUND_SECONDS) / per_call)
        bandwidth = max(bandwidth, read())
    lines: list[dict[str, float | str]] = []
    for each, found in seconds.items():
        matrix = matrices[each][0]
        ratio = statistics.median(a / b for a, b in zip(found, seconds["int8"], strict=True))
        lines.append(
            {
                "format": each,
                "operands": names[matrix.dtype],
                "rows": rows,
                "us": round(min(found) * 1e6, 1),
                "of_int8": round(ratio, 3),
                "mb": round(matrix.nbytes / 1e6, 2),
                "of_read": round(matrix.nbytes / bandwidth / min(found), 3),
            }
        )
    return lines


if __name__ == "__main__":
    main()
