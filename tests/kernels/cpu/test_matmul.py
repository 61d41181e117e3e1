"""Packing, encoding and products of the CPU kernels against torch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from support.cpu_kernels import EMULATED, NATIVE, decode_int8, kernels_of
from taco_kernels.cpu.elementwise import activate_rows, add_rows
from taco_kernels.cpu.matmul import EncodedRows, in_row_order, multiply, multiply_argmax
from taco_kernels.cpu.packed_matrix import PackedMatrix
from taco_kernels.cpu.sampling import gather_logprobs
from taco_kernels.cpu.token_masks import MaskColumns
from taco_kernels.library import CpuKernels
from taco_kernels.reference import activation
from taco_kernels.reference.linear import (
    int8_linear,
    linear,
    quantize_activations,
    quantize_rows,
)
from taco_kernels.sampling_metadata import NO_TOKEN

DTYPES = (torch.float32, torch.bfloat16, torch.int8)
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    **activation.ACTIVATIONS,
}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rounded_operands(kernels: CpuKernels, x: Tensor, dtype: torch.dtype) -> Tensor:
    """x rounded as in the kernel's operands."""
    narrow = dtype == torch.bfloat16 and kernels.bf16_operand_bytes == 2
    return x.bfloat16().float() if narrow else x


def expected(
    kernels: CpuKernels, x: Tensor, w: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    if dtype == torch.int8:
        return int8_linear(x, w, bias).double()
    return linear(rounded_operands(kernels, x, dtype), w.to(dtype), bias)


def assert_near(actual: Tensor, wanted: Tensor, x: Tensor, w: Tensor) -> None:
    """Assert equality within the error of float32 sums of `k` products."""
    bound = 2e-6 * (x.double().abs() @ w.double().abs().T) + 1e-6 * wanted.abs() + 1e-30
    assert actual.shape == wanted.shape
    assert ((actual.double() - wanted).abs() <= bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("count", "n", "k"), [(1, 16, 64), (2, 40, 32), (5, 17, 1), (7, 130, 67), (33, 33, 100)]
)
def test_product(cpu_kernels: CpuKernels, dtype: torch.dtype, count: int, n: int, k: int) -> None:
    x, w, bias = numbers(count, k), numbers(n, k, seed=1), numbers(n, seed=2)
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, dtype, bias=bias)

    out = multiply(cpu_kernels, EncodedRows(cpu_kernels, x, dtype), matrix)

    assert_near(out, expected(cpu_kernels, x, w, bias, dtype), x, w)


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_rows_are_summed_in_parts(cpu_kernels: CpuKernels, dtype: torch.dtype) -> None:
    x, w = numbers(3, 2100), numbers(20, 2100, seed=1)
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, dtype)

    out = multiply(cpu_kernels, EncodedRows(cpu_kernels, x, dtype), matrix)

    assert_near(out, expected(cpu_kernels, x, w, None, dtype), x, w)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_neighbours_or_threads(
    cpu_kernels: CpuKernels, dtype: torch.dtype
) -> None:
    x, w = numbers(40, 530), numbers(200, 530, seed=1)
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, dtype)
    alone = [multiply(cpu_kernels, EncodedRows(cpu_kernels, row[None], dtype), matrix) for row in x]
    wanted = torch.cat(alone)

    for threads in (1, 3):
        kernels = kernels_of(cpu_kernels.isa, threads)
        for begin, end in ((0, 40), (3, 20), (0, 2), (0, 33), (8, 24), (5, 12)):
            out = multiply(kernels, EncodedRows(kernels, x[begin:end], dtype), matrix)
            assert torch.equal(out, wanted[begin:end]), (threads, begin, end)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_row_count(cpu_kernels: CpuKernels, dtype: torch.dtype) -> None:
    x, w = numbers(40, 70), numbers(48, 70, seed=1)
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, dtype)
    wanted = multiply(cpu_kernels, EncodedRows(cpu_kernels, x, dtype), matrix)

    for count in range(1, 40):
        out = multiply(cpu_kernels, EncodedRows(cpu_kernels, x[:count], dtype), matrix)
        assert torch.equal(out, wanted[:count]), count


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_whether_weights_are_cached(
    cpu_kernels: CpuKernels, dtype: torch.dtype
) -> None:
    x, w = numbers(20, 2100), numbers(200, 2100, seed=1)
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, dtype)
    for count in (*range(1, 16), 20):
        rows = EncodedRows(cpu_kernels, x[:count], dtype)
        matrix.struct.is_cached = False
        wanted = multiply(cpu_kernels, rows, matrix)
        matrix.struct.is_cached = True
        assert torch.equal(multiply(cpu_kernels, rows, matrix), wanted), count


def test_many_rows_span_blocks(cpu_kernels: CpuKernels) -> None:
    x, w = numbers(250, 40), numbers(90, 40, seed=1)
    for dtype in DTYPES:
        matrix = PackedMatrix.from_tensor(cpu_kernels, w, dtype)
        out = multiply(cpu_kernels, EncodedRows(cpu_kernels, x, dtype), matrix)
        assert_near(out, expected(cpu_kernels, x, w, None, dtype), x, w)


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations(cpu_kernels: CpuKernels, kind: str) -> None:
    x, w, bias = numbers(3, 20), numbers(30, 20, seed=1), numbers(30, seed=2)
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, bias=bias)

    out = multiply(cpu_kernels, EncodedRows(cpu_kernels, x, w.dtype), matrix, activation=kind)

    torch.testing.assert_close(
        out, ACTIVATIONS[kind](linear(x, w, bias)).float(), atol=3e-5, rtol=3e-5
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [19, 32])
def test_adds_to_the_residual_stream(cpu_kernels: CpuKernels, dtype: torch.dtype, n: int) -> None:
    x, w, bias = numbers(4, 50), numbers(n, 50, seed=1), numbers(n, seed=2)
    stream = numbers(4, n + 5, seed=3)
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, dtype, bias=bias)
    rows = EncodedRows(cpu_kernels, x, dtype)
    wanted = stream.clone()
    wanted[:, :n] += multiply(cpu_kernels, rows, matrix)

    multiply(cpu_kernels, rows, matrix, add_to=stream[:, :n])

    assert torch.equal(stream, wanted)  # columns past the matrix's are left alone


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", [16, 37, 100])
def test_gated_pair(cpu_kernels: CpuKernels, dtype: torch.dtype, inner: int) -> None:
    x, w = numbers(5, 45), numbers(2 * inner, 45, seed=1)
    bias = numbers(2 * inner, seed=2)
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, dtype, bias=bias, gated=True)

    rows = EncodedRows(cpu_kernels, x, dtype)
    out = multiply(cpu_kernels, rows, matrix, activation="silu")

    gate, up = expected(cpu_kernels, x, w, bias, dtype).chunk(2, dim=1)
    torch.testing.assert_close(out, (functional.silu(gate) * up).float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", activation.GATED_ACTIVATIONS)
def test_gated_pairs_with_any_activation(cpu_kernels: CpuKernels, kind: str) -> None:
    """The epilogue's numbers are those of the row function on the stored product."""
    x, w, bias = numbers(4, 45), numbers(2 * 37, 45, seed=1), numbers(2 * 37, seed=2)
    pair = PackedMatrix.from_tensor(cpu_kernels, w, bias=bias, gated=True)
    halves = PackedMatrix.from_tensor(cpu_kernels, w, bias=bias)
    rows = EncodedRows(cpu_kernels, x, w.dtype)
    options: dict[str, Any] = {"alpha": 1.5, "limit": 2.0} if kind == "swiglu_clipped" else {}

    out = multiply(cpu_kernels, rows, pair, activation=kind, **options)

    gate_up = multiply(cpu_kernels, rows, halves)
    assert torch.equal(out, activate_rows(cpu_kernels, gate_up, kind, gated=True, **options))


@pytest.mark.parametrize("dtype", DTYPES)
def test_adds_with_a_factor(cpu_kernels: CpuKernels, dtype: torch.dtype) -> None:
    x, w, stream = numbers(4, 50), numbers(19, 50, seed=1), numbers(4, 19, seed=3)
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, dtype)
    rows = EncodedRows(cpu_kernels, x, dtype)
    wanted = stream.clone()
    add_rows(cpu_kernels, wanted, multiply(cpu_kernels, rows, matrix), 0.22)

    multiply(cpu_kernels, rows, matrix, add_to=stream, factor=0.22)

    assert torch.equal(stream, wanted)


def test_writes_operands_of_the_next_product(cpu_kernels: CpuKernels) -> None:
    x, w = numbers(3, 40), numbers(27, 40, seed=1)
    matrix = PackedMatrix.from_tensor(cpu_kernels, w)
    rows = EncodedRows(cpu_kernels, x, w.dtype)

    out = multiply(cpu_kernels, rows, matrix, as_operands=True)

    operands = in_row_order(cpu_kernels, out, 3)[:, :27]
    assert torch.equal(operands, multiply(cpu_kernels, rows, matrix).to(out.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 9, 30, 40])
def test_argmax(cpu_kernels: CpuKernels, dtype: torch.dtype, count: int) -> None:
    x, w = numbers(count, 24), numbers(203, 24, seed=1)
    x[count // 2, 5] = 50  # in int8 an outlier
    w[150:] = w[50:103]  # ties: the first must win
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, dtype)
    rows = EncodedRows(cpu_kernels, x, dtype)

    columns = multiply_argmax(cpu_kernels, rows, matrix)

    wanted = multiply(cpu_kernels, rows, matrix).argmax(dim=1)
    assert torch.equal(columns.long(), wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spoilt", [torch.nan, torch.inf, -torch.inf])
def test_argmax_returns_no_token_without_a_finite_maximum(
    cpu_kernels: CpuKernels, dtype: torch.dtype, spoilt: float
) -> None:
    x, w = torch.ones(9, 24), numbers(203, 24, seed=1)
    bias = torch.zeros(203)
    bias[190 if spoilt > 0 or spoilt != spoilt else slice(None)] = spoilt
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, dtype, bias=bias)
    rows = EncodedRows(cpu_kernels, x, dtype)

    assert multiply_argmax(cpu_kernels, rows, matrix).tolist() == [NO_TOKEN] * 9


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 9, 120])
@pytest.mark.parametrize("share", [0.001, 0.02, 0.5])
def test_argmax_of_allowed_columns(
    cpu_kernels: CpuKernels, dtype: torch.dtype, count: int, share: float
) -> None:
    """Every third row has no mask in the second round: then no block may be skipped."""
    x, w = numbers(count, 24), numbers(1000, 24, seed=1)
    bias = torch.zeros(1000)
    bias[::7] = torch.nan  # banned in rows with a mask
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, dtype, bias=bias)
    rows = EncodedRows(cpu_kernels, x, dtype)
    products = multiply(cpu_kernels, rows, matrix)
    is_allowed = torch.rand(count, 1000, generator=torch.Generator().manual_seed(2)) < share
    is_allowed[:, ::7] = False
    for masked in (torch.arange(count), torch.arange(count)[torch.arange(count) % 3 > 0]):
        padded = np.zeros((masked.numel(), 1024), dtype=np.bool_)
        padded[:, :1000] = is_allowed[masked]
        bits = np.packbits(padded, axis=1, bitorder="little").view(np.int32)
        masks = MaskColumns.of(masked.numpy(), bits, count)
        wanted = torch.full((count,), NO_TOKEN)  # without a mask: because of NaN
        for row in masked.tolist():
            if is_allowed[row].any():
                wanted[row] = products[row].masked_fill(~is_allowed[row], -torch.inf).argmax()

        columns = multiply_argmax(cpu_kernels, rows, matrix, masks=masks)

        assert torch.equal(columns.long(), wanted)


def test_log_probabilities_of_masked_columns_are_rejected(cpu_kernels: CpuKernels) -> None:
    matrix = PackedMatrix.from_tensor(cpu_kernels, numbers(20, 8))
    rows = EncodedRows(cpu_kernels, numbers(1, 8), matrix.dtype)
    masks = MaskColumns(np.zeros((1, 1), dtype=np.int32), np.zeros(1, dtype=np.int32))
    with pytest.raises(ValueError, match="masks exclude"):
        multiply_argmax(cpu_kernels, rows, matrix, torch.empty(1), masks)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spoilt", [slice(3, 4), slice(None)])
def test_nan_in_one_row_does_not_change_argmax_of_others(
    cpu_kernels: CpuKernels, dtype: torch.dtype, spoilt: slice
) -> None:
    x, w = numbers(9, 24), numbers(203, 24, seed=1)
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, dtype)
    alone = multiply_argmax(cpu_kernels, EncodedRows(cpu_kernels, x, dtype), matrix)
    x[4, spoilt] = torch.nan

    columns = multiply_argmax(cpu_kernels, EncodedRows(cpu_kernels, x, dtype), matrix)

    alone[4] = NO_TOKEN
    assert torch.equal(columns, alone)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 40])
def test_nan_stays_nan(cpu_kernels: CpuKernels, dtype: torch.dtype, count: int) -> None:
    """In the products of its row of activations, and of its row of weights."""
    x, w = numbers(count, 70), numbers(50, 70, seed=1)
    x[0, 40] = torch.nan
    w[7, 2], w[33] = torch.nan, torch.nan
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, dtype)

    out = multiply(cpu_kernels, EncodedRows(cpu_kernels, x, dtype), matrix)

    is_nan = torch.zeros(count, 50, dtype=torch.bool)
    is_nan[0], is_nan[:, 7], is_nan[:, 33] = True, True, True
    assert torch.equal(out.isnan(), is_nan)


def test_argmax_skips_padding(cpu_kernels: CpuKernels) -> None:
    x, w = -torch.ones(2, 8), torch.rand(18, 8) + 1
    matrix = PackedMatrix.from_tensor(cpu_kernels, w)
    rows = EncodedRows(cpu_kernels, x, w.dtype)

    columns = multiply_argmax(cpu_kernels, rows, matrix)

    assert torch.equal(columns.long(), (x @ w.T).argmax(dim=1))


def argmax_logprobs(kernels: CpuKernels, x: Tensor, matrix: PackedMatrix) -> Tensor:
    """float32 [count]: the log probability of the greatest column of each row."""
    logprobs = torch.empty(x.shape[0])
    multiply_argmax(kernels, EncodedRows(kernels, x, matrix.dtype), matrix, logprobs)
    return logprobs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 16, 63, 65, 700])
def test_argmax_logprobs_are_those_of_the_softmax(
    cpu_kernels: CpuKernels, dtype: torch.dtype, n: int
) -> None:
    x, w, bias = 3 * numbers(9, 24), numbers(n, 24, seed=1), numbers(n, seed=2)
    bias[: n // 2] = -torch.inf  # tokens, and whole parts of the sum, without a probability
    bias[-1] = -1e30
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, dtype, bias=bias)
    logits = multiply(cpu_kernels, EncodedRows(cpu_kernels, x, dtype), matrix)

    logprobs = argmax_logprobs(cpu_kernels, x, matrix)

    wanted = logits.double().log_softmax(-1).max(-1).values
    torch.testing.assert_close(logprobs.double(), wanted, atol=5e-7, rtol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_argmax_logprobs_are_the_bits_of_stored_logits(
    cpu_kernels: CpuKernels, dtype: torch.dtype
) -> None:
    """A request's log probabilities do not depend on what other requests of the step ask for."""
    x, matrix = numbers(21, 24), PackedMatrix.from_tensor(cpu_kernels, numbers(1100, 24), dtype)
    x[4, 5] = 50  # in int8 an outlier
    rows = EncodedRows(cpu_kernels, x, dtype)
    logits = multiply(cpu_kernels, rows, matrix)
    token_ids = multiply_argmax(cpu_kernels, rows, matrix).long().numpy()

    _, values, _ = gather_logprobs(cpu_kernels, logits, token_ids, np.zeros(21, dtype=np.int32))

    assert torch.equal(argmax_logprobs(cpu_kernels, x, matrix), torch.from_numpy(values[:, 0]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_argmax_logprobs_do_not_depend_on_neighbours_or_threads(
    cpu_kernels: CpuKernels, dtype: torch.dtype
) -> None:
    x, w = numbers(120, 40), numbers(2100, 40, seed=1)
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, dtype)
    wanted = torch.cat([argmax_logprobs(cpu_kernels, row[None], matrix) for row in x])

    for threads in (1, 3):
        kernels = kernels_of(cpu_kernels.isa, threads)
        for begin, end in ((0, 120), (3, 20), (0, 2), (0, 97)):
            logprobs = argmax_logprobs(kernels, x[begin:end], matrix)
            assert torch.equal(logprobs, wanted[begin:end]), (threads, begin, end)


def test_nan_in_one_row_does_not_change_argmax_logprobs_of_others(
    cpu_kernels: CpuKernels,
) -> None:
    x, matrix = numbers(9, 24), PackedMatrix.from_tensor(cpu_kernels, numbers(203, 24, seed=1))
    alone = argmax_logprobs(cpu_kernels, x, matrix)
    x[4, 3] = torch.nan

    logprobs = argmax_logprobs(cpu_kernels, x, matrix)

    others = torch.arange(9) != 4
    assert torch.equal(logprobs[others], alone[others])


def test_refuses_room_for_logprobs_of_another_shape_or_type() -> None:
    kernels = kernels_of("avx2", 1)
    matrix = PackedMatrix.from_tensor(kernels, numbers(4, 8))
    rows = EncodedRows(kernels, numbers(2, 8), torch.float32)

    for logprobs in (torch.empty(3), torch.empty(2, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"float32 \[2\]"):
            multiply_argmax(kernels, rows, matrix, logprobs)


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gated", [False, True])
def test_packs_slices(
    cpu_kernels: CpuKernels, source: torch.dtype, dtype: torch.dtype, gated: bool
) -> None:
    w = numbers(86, 70).to(source)
    x = numbers(2, 70, seed=1)
    whole = PackedMatrix.from_tensor(cpu_kernels, w, dtype, gated=gated)
    sliced = PackedMatrix(86, 70, dtype, gated=gated)
    for begin, end in ((50, 86), (0, 7), (7, 50)):
        sliced.pack(cpu_kernels, w[begin:end], begin)
    bias = numbers(86, seed=2)
    whole.set_bias(bias)
    for begin, end in ((0, 60), (60, 86)):
        sliced.set_bias(bias[begin:end], begin)

    rows = EncodedRows(cpu_kernels, x, dtype)
    out = multiply(cpu_kernels, rows, sliced)

    assert torch.equal(out, multiply(cpu_kernels, rows, whole))
    if not gated:
        assert_near(out, expected(cpu_kernels, x, w.float(), bias, dtype), x, w.float())


def test_int8_equals_the_reference(cpu_kernels: CpuKernels) -> None:
    """Equal integers and exact integer sums; the extremes reach the ends of the range."""
    x, w = numbers(6, 300), numbers(50, 300, seed=1)
    x[1], x[2], w[3] = 0, 127.0, -127.0
    q, scales = quantize_rows(x)
    columns, column_scales = quantize_rows(w)
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, torch.int8)
    rows = EncodedRows(cpu_kernels, x, torch.int8)

    out = multiply(cpu_kernels, rows, matrix)

    assert rows.row_scales is not None
    assert torch.equal(rows.row_scales.scales, scales)
    assert torch.equal(matrix.scales, column_scales)
    sums = (q.int() @ columns.int().T).float()
    assert torch.equal(out, sums * (scales[:, None] * column_scales[None, :]))


@pytest.mark.parametrize("k", [300, 1030])
def test_outliers_of_int8_rows_keep_16_bits(cpu_kernels: CpuKernels, k: int) -> None:
    """Rows with none, one, the most and too many outliers, at both ends and side by side, and with
    a long tail.
    """
    x, w, bias = numbers(7, k), numbers(50, k, seed=1), numbers(50, seed=2)
    x[1, k - 1] = 300
    x[2, :8], x[2, 40:80:5] = 200, -500
    x[3, ::11][:20] = 400 + torch.arange(20)
    x[3, ::22] *= -1
    x[4] = 0
    x[4, 7] = -3
    x[5, 0], x[5, 16] = 1e6, -1e-3
    x[6, 1:20] = {300: 128, 1030: 24}[k]  # ten times the mean
    x[6, [0, 90, 91, k - 1]] = -300
    values, scales = quantize_activations(x)
    columns, column_scales = quantize_rows(w)
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, torch.int8, bias=bias)
    rows = EncodedRows(cpu_kernels, x, torch.int8)

    out = multiply(cpu_kernels, rows, matrix)

    assert rows.row_scales is not None
    assert rows.row_scales.num_outliers.tolist() == [0, 1, 16, 16, 1, 1, 4]
    assert torch.equal(rows.row_scales.scales, scales)
    operands = in_row_order(cpu_kernels, rows.data, rows.struct.count)
    decoded = decode_int8(operands, cpu_kernels)[:, :k] + rows.row_scales.high_parts(k)
    assert torch.equal(decoded.double(), values)
    assert (decoded * scales[:, None] - x).abs().max(1).values.le(0.5001 * scales).all()
    sums = values @ columns.double().T
    wanted = sums * (scales[:, None] * column_scales[None, :]).double() + bias
    assert ((out - wanted).abs() <= 5e-7 * (wanted.abs() + bias.abs())).all()
    for count in range(1, 8):
        part = multiply(cpu_kernels, EncodedRows(cpu_kernels, x[-count:], torch.int8), matrix)
        assert torch.equal(part, out[-count:])


def test_outliers_count_in_products_of_many_rows_and_long_k(cpu_kernels: CpuKernels) -> None:
    """On tiles such a product is cut in ranges of k, and the last panels have an own epilogue."""
    count, n, k = 150, 104, 4200
    x, w = numbers(count, k), numbers(n, k, seed=1)
    x[::2, 11], x[1::3, 2500:2503], x[5::7, k - 1] = 500, -700, 900
    stream = numbers(count, n, seed=2)
    values, scales = quantize_activations(x)
    columns, column_scales = quantize_rows(w)
    matrix = PackedMatrix.from_tensor(cpu_kernels, w, torch.int8)
    rows = EncodedRows(cpu_kernels, x, torch.int8)

    out = multiply(cpu_kernels, rows, matrix, add_to=stream.clone())

    sums = values @ columns.double().T
    wanted = sums * (scales[:, None] * column_scales[None, :]).double() + stream
    assert ((out - wanted).abs() <= 1e-6 * (wanted.abs() + stream.abs())).all()
    alone = EncodedRows(cpu_kernels, x[40:41], torch.int8)
    product = multiply(cpu_kernels, alone, matrix, add_to=stream[40:41].clone())
    assert torch.equal(product, out[40:41])


def test_int8_rows_of_the_smallest_numbers_are_finite(cpu_kernels: CpuKernels) -> None:
    """The reciprocal of their scale would be infinite."""
    x, w = numbers(3, 100), numbers(20, 100, seed=1)
    x[0] *= 1e-38
    x[1] *= 1e-41
    x[2, 5] = 1e-37  # an outlier beside zeros
    x[2, 6:] = x[2, :5] = 0
    values, scales = quantize_activations(x)
    rows = EncodedRows(cpu_kernels, x, torch.int8)
    out = multiply(cpu_kernels, rows, PackedMatrix.from_tensor(cpu_kernels, w, torch.int8))
    assert rows.row_scales is not None
    assert torch.equal(rows.row_scales.scales, scales)
    operands = in_row_order(cpu_kernels, rows.data, rows.struct.count)
    decoded = decode_int8(operands, cpu_kernels)[:, :100] + rows.row_scales.high_parts(100)
    assert torch.equal(decoded.double(), values)
    assert torch.allclose(out, x @ w.T, rtol=0, atol=1e-36)


@pytest.mark.parametrize("k", [64, 100, 4160])
@pytest.mark.parametrize("count", [1, 5, 16, 37, 90])
def test_operands_of_bf16_are_quantized_as_their_floats(
    cpu_kernels: CpuKernels, count: int, k: int
) -> None:
    """On tiles, rows of whole lines are quantized sixteen at a time."""
    x = rounded_operands(cpu_kernels, numbers(count, k), torch.bfloat16)
    x[::2, k // 2], x[::3, 1 : k - 1 : 7][:, :20], x[1::4, k - 1] = 96, -40, 1000
    x[count // 2] = 0
    wanted = EncodedRows(cpu_kernels, x, torch.int8)
    operands = EncodedRows(cpu_kernels, x, torch.bfloat16)
    found = EncodedRows(cpu_kernels, torch.zeros_like(x), torch.int8)
    assert wanted.row_scales is not None
    assert found.row_scales is not None

    cpu_kernels.lib.taco_encode_operands(
        cpu_kernels.pool,
        count,
        k,
        operands.data.data_ptr(),
        found.data.data_ptr(),
        found.row_scales.data_ptr(),
        None,
    )

    assert torch.equal(found.row_scales.scales, wanted.row_scales.scales)
    assert torch.equal(found.row_scales.high_parts(k), wanted.row_scales.high_parts(k))
    assert torch.equal(
        in_row_order(cpu_kernels, found.data, count), in_row_order(cpu_kernels, wanted.data, count)
    )


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    count=st.integers(1, 40),
    n=st.integers(1, 150),
    k=st.integers(1, 150),
    dtype=st.sampled_from(DTYPES),
    threads=st.integers(1, 3),
)
def test_any_shape(isa: str, count: int, n: int, k: int, dtype: torch.dtype, threads: int) -> None:
    kernels = kernels_of(isa, threads)
    x, w = numbers(count, k), numbers(n, k, seed=1)
    matrix = PackedMatrix.from_tensor(kernels, w, dtype)

    out = multiply(kernels, EncodedRows(kernels, x, dtype), matrix)

    assert_near(out, expected(kernels, x, w, None, dtype), x, w)


@pytest.mark.parametrize(
    ("rows", "start", "message"),
    [
        (torch.zeros(2, 4, dtype=torch.float64), 0, "float64"),
        (torch.zeros(4, 2).T, 0, "contiguous rows"),
        (torch.zeros(2, 5), 0, "does not fit"),
        (torch.zeros(2, 4), 9, "does not fit"),
    ],
)
def test_refuses_rows_that_cannot_be_packed(rows: Tensor, start: int, message: str) -> None:
    matrix = PackedMatrix(10, 4, torch.float32)

    with pytest.raises(ValueError, match=message):
        matrix.pack(kernels_of("avx2", 1), rows, start)


def test_refuses_rows_of_another_shape_or_type() -> None:
    kernels = kernels_of("avx2", 1)
    matrix = PackedMatrix.from_tensor(kernels, numbers(4, 8))

    with pytest.raises(ValueError, match="do not fit"):
        multiply(kernels, EncodedRows(kernels, numbers(1, 7), torch.float32), matrix)
    with pytest.raises(ValueError, match="do not fit"):
        multiply(kernels, EncodedRows(kernels, numbers(1, 8), torch.bfloat16), matrix)
