"""The product of a mixture of experts on the CPU, against the reference and against itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.cpu_kernels import EMULATED, NATIVE, kernels_of
from taco_kernels.cpu.experts import PackedExperts, gated_activation, multiply_experts
from taco_kernels.cpu.matmul import EncodedRows, multiply
from taco_kernels.cpu.packed_matrix import PackedMatrix
from taco_kernels.library import CpuKernels
from taco_kernels.native.memory import Scratch
from taco_kernels.reference import experts as reference
from taco_kernels.reference.activation import GATED_ACTIVATIONS
from taco_kernels.reference.linear import quantize_rows

DTYPES = (torch.float32, torch.bfloat16, torch.int8)
# Relative to the greatest output: rounding of the weights (exact in float32) is in both, that of
# activations to bf16 or int8 is in the kernel alone.
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.int8: 3e-2}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Mixture:
    """Weights of some experts, in float32 as the kernels keep them and packed."""

    def __init__(
        self,
        kernels: CpuKernels,
        dtype: torch.dtype,
        num_experts: int,
        hidden_size: int,
        inner_size: int,
        *,
        has_bias: bool = False,
    ) -> None:
        self.dtype = dtype
        gate_up = numbers(num_experts, 2 * inner_size, hidden_size, seed=1) / hidden_size**0.5
        down = numbers(num_experts, hidden_size, inner_size, seed=2) / inner_size**0.5
        self.biases: dict[str, Tensor] = {}
        if has_bias:
            self.biases = {
                "gate_up_bias": numbers(num_experts, 2 * inner_size, seed=3),
                "down_bias": numbers(num_experts, hidden_size, seed=4),
            }
        self.packed = (
            PackedExperts.from_tensor(
                kernels, gate_up, dtype, bias=self.biases.get("gate_up_bias"), gated=True
            ),
            PackedExperts.from_tensor(kernels, down, dtype, bias=self.biases.get("down_bias")),
        )
        self.gate_up, self.down = self._as_kept(gate_up), self._as_kept(down)

    def _as_kept(self, weight: Tensor) -> Tensor:
        if self.dtype != torch.int8:
            return weight.to(self.dtype).float()
        rows, scales = quantize_rows(weight.flatten(0, 1))
        return (rows * scales[:, None]).view(weight.shape)

    def expected(self, x: Tensor, ids: Tensor, weights: Tensor, **gate: Any) -> Tensor:
        options = gate | self.biases
        return reference.multiply_experts(x, ids, weights, self.gate_up, self.down, **options)

    def multiply(
        self,
        kernels: CpuKernels,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        *,
        add_to: Tensor | None = None,
        scratch: Scratch | None = None,
        **gate: Any,
    ) -> Tensor:
        rows = EncodedRows(kernels, x, self.dtype)
        return multiply_experts(
            kernels,
            rows,
            ids,
            weights,
            *self.packed,
            add_to=add_to,
            scratch=scratch,
            **gate,
        )


def choice(num_rows: int, num_experts: int, top_k: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Different experts of each row, and weights that sum to 1."""
    scores = numbers(num_rows, num_experts, seed=seed)
    ids = scores.argsort(dim=1)[:, :top_k].int().contiguous()
    return ids, numbers(num_rows, top_k, seed=seed + 1).softmax(1)


def assert_near(actual: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    assert actual.shape == wanted.shape
    if actual.numel():
        error = (actual - wanted).abs().max() / wanted.abs().max()
        assert error <= TOLERANCES[dtype], error


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_rows", "num_experts", "top_k", "hidden_size", "inner_size"),
    [(1, 8, 2, 64, 32), (5, 4, 4, 40, 24), (37, 3, 2, 70, 19), (3, 1, 1, 16, 5), (0, 4, 2, 32, 16)],
)
def test_agrees_with_the_reference(
    cpu_kernels: CpuKernels,
    dtype: torch.dtype,
    num_rows: int,
    num_experts: int,
    top_k: int,
    hidden_size: int,
    inner_size: int,
) -> None:
    mixture = Mixture(cpu_kernels, dtype, num_experts, hidden_size, inner_size)
    x, (ids, weights) = numbers(num_rows, hidden_size), choice(num_rows, num_experts, top_k)

    out = mixture.multiply(cpu_kernels, x, ids, weights)

    assert_near(out, mixture.expected(x, ids, weights), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("activation", GATED_ACTIVATIONS)
def test_gates_and_biases(dtype: torch.dtype, has_bias: bool, activation: str) -> None:
    kernels = kernels_of(NATIVE[-1], 2)
    mixture = Mixture(kernels, dtype, 5, 48, 40, has_bias=has_bias)
    x, (ids, weights) = numbers(9, 48), choice(9, 5, 3)

    gate: dict[str, Any] = {"activation": activation}
    if activation == "swiglu_clipped":
        gate |= {"alpha": 1.3, "limit": 0.9}

    out = mixture.multiply(kernels, x, ids, weights, **gate)

    assert_near(out, mixture.expected(x, ids, weights, **gate), dtype)


def test_clipping_keeps_a_nan_in_its_row(cpu_kernels: CpuKernels) -> None:
    mixture = Mixture(cpu_kernels, torch.float32, 2, 16, 16)
    x, (ids, weights) = numbers(3, 16), choice(3, 2, 1)
    x[1, 2] = torch.nan

    out = mixture.multiply(cpu_kernels, x, ids, weights, activation="swiglu_clipped", limit=1.0)

    assert out[1].isnan().all()
    assert out[::2].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_expert_is_the_dense_product(cpu_kernels: CpuKernels, dtype: torch.dtype) -> None:
    """Bit for bit: the same instructions in the same order."""
    gate_up, down = numbers(1, 60, 130, seed=1), numbers(1, 50, 30, seed=2)
    x = numbers(40, 130)
    ids, weights = torch.zeros((40, 1), dtype=torch.int32), torch.ones(40, 1)
    packed = (
        PackedExperts.from_tensor(cpu_kernels, gate_up, dtype, gated=True),
        PackedExperts.from_tensor(cpu_kernels, down, dtype),
    )
    rows = EncodedRows(cpu_kernels, x, dtype)

    out = multiply_experts(cpu_kernels, rows, ids, weights, *packed)

    dense_gate_up = PackedMatrix.from_tensor(cpu_kernels, gate_up[0], dtype, gated=True)
    inner = multiply(cpu_kernels, rows, dense_gate_up, activation="silu")
    dense_down = PackedMatrix.from_tensor(cpu_kernels, down[0], dtype)
    wanted = multiply(cpu_kernels, EncodedRows(cpu_kernels, inner, dtype), dense_down)
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_neighbours_chunks_or_threads(
    cpu_kernels: CpuKernels, dtype: torch.dtype
) -> None:
    mixture = Mixture(cpu_kernels, dtype, 6, 530, 90, has_bias=True)
    x, (ids, weights) = numbers(150, 530), choice(150, 6, 3)
    ids[:120, 0] = 2  # most rows choose one expert, in more than one block of rows
    wanted = torch.cat(
        [
            mixture.multiply(cpu_kernels, x[i : i + 1], ids[i : i + 1], weights[i : i + 1])
            for i in range(150)
        ]
    )

    for threads in (1, 3):
        kernels = kernels_of(cpu_kernels.isa, threads)
        for begin, end in ((0, 150), (3, 20), (0, 2), (0, 117), (8, 24)):
            part = slice(begin, end)
            out = mixture.multiply(kernels, x[part], ids[part], weights[part])
            assert torch.equal(out, wanted[part]), (threads, begin, end)


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED[-1:]])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    num_experts=st.integers(1, 20),
    num_rows=st.integers(0, 40),
    top_k=st.integers(1, 8),
    hidden_size=st.integers(1, 100),
    inner_size=st.integers(1, 60),
    dtype=st.sampled_from(DTYPES),
    threads=st.integers(1, 3),
    data=st.data(),
)
def test_any_routing(
    isa: str,
    num_experts: int,
    num_rows: int,
    top_k: int,
    hidden_size: int,
    inner_size: int,
    dtype: torch.dtype,
    threads: int,
    data: st.DataObject,
) -> None:
    """Experts that no row has chosen, that all have, that one row has chosen twice."""
    kernels = kernels_of(isa, threads)
    mixture = Mixture(kernels, dtype, num_experts, hidden_size, inner_size)
    chosen = data.draw(
        st.lists(
            st.integers(0, num_experts - 1), min_size=num_rows * top_k, max_size=num_rows * top_k
        )
    )
    ids = torch.tensor(chosen, dtype=torch.int32).view(num_rows, top_k)
    x, weights = numbers(num_rows, hidden_size), numbers(num_rows, top_k, seed=5).softmax(1)

    out = mixture.multiply(kernels, x, ids, weights)

    alone = [
        mixture.multiply(kernels, x[i : i + 1], ids[i : i + 1], weights[i : i + 1])
        for i in range(num_rows)
    ]
    assert torch.equal(out, torch.cat([torch.empty(0, hidden_size), *alone]))
    if dtype == torch.float32:
        wanted = mixture.expected(x, ids, weights)
        torch.testing.assert_close(out, wanted, atol=2e-5, rtol=2e-5)


def test_experts_without_rows_are_not_read() -> None:
    kernels = kernels_of(NATIVE[-1], 2)
    mixture = Mixture(kernels, torch.float32, 4, 32, 16)
    nan = torch.full((32, 32), torch.nan)
    mixture.packed[0].pack(kernels, 1, nan)
    x, weights = numbers(3, 32), torch.ones(3, 2)
    ids = torch.tensor([[0, 3], [3, 2], [2, 0]], dtype=torch.int32)

    assert mixture.multiply(kernels, x, ids, weights).isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_adds_to_the_residual_stream(cpu_kernels: CpuKernels, dtype: torch.dtype) -> None:
    mixture = Mixture(cpu_kernels, dtype, 4, 35, 16)
    x, (ids, weights) = numbers(6, 35), choice(6, 4, 2)
    stream = numbers(6, 40, seed=9)
    wanted = stream.clone()
    wanted[:, :35] += mixture.multiply(cpu_kernels, x, ids, weights)

    mixture.multiply(cpu_kernels, x, ids, weights, add_to=stream[:, :35])

    assert torch.equal(stream, wanted)


def test_scratch_with_other_contents_changes_nothing() -> None:
    """Padding of inner rows is written, not assumed to be zero."""
    kernels, scratch = kernels_of(NATIVE[-1], 2), Scratch()
    for dtype in DTYPES:
        mixture = Mixture(kernels, dtype, 4, 50, 21)
        x, (ids, weights) = numbers(7, 50), choice(7, 4, 2)
        wanted = mixture.multiply(kernels, x, ids, weights)
        scratch.reserve(1 << 20)
        scratch._memory.fill_(255)  # NaN in every type

        out = mixture.multiply(kernels, x, ids, weights, scratch=scratch)

        assert torch.equal(out, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_packs_slices_of_experts_in_any_order(dtype: torch.dtype) -> None:
    kernels = kernels_of(NATIVE[-1], 2)
    mixture = Mixture(kernels, dtype, 3, 33, 25, has_bias=True)
    gate_up = PackedExperts(3, 50, 33, dtype, gated=True)
    source = numbers(3, 50, 33, seed=1) / 33**0.5
    for expert in (2, 0, 1):
        for begin, end in ((30, 50), (0, 7), (7, 30)):
            gate_up.pack(kernels, expert, source[expert, begin:end], begin)
            gate_up.set_bias(expert, mixture.biases["gate_up_bias"][expert, begin:end], begin)
    x, (ids, weights) = numbers(5, 33), choice(5, 3, 2)
    wanted = mixture.multiply(kernels, x, ids, weights)
    assert gate_up.nbytes == mixture.packed[0].nbytes > gate_up.shape[0] * 50 * 33

    mixture.packed = (gate_up, mixture.packed[1])

    assert torch.equal(mixture.multiply(kernels, x, ids, weights), wanted)


def test_error_names_the_mismatch() -> None:
    kernels = kernels_of("avx2", 1)
    mixture = Mixture(kernels, torch.float32, 4, 32, 16)
    x, (ids, weights) = numbers(3, 32), choice(3, 4, 2)

    with pytest.raises(ValueError, match="experts 0 to 3"):
        mixture.multiply(kernels, x, ids + 4, weights)
    with pytest.raises(ValueError, match=r"ids must be contiguous torch.int32 \[3, top_k\]"):
        mixture.multiply(kernels, x, ids.long(), weights)
    with pytest.raises(ValueError, match=r"weights must be contiguous torch.float32"):
        mixture.multiply(kernels, x, ids, weights[:, :1])
    with pytest.raises(ValueError, match=r"rows of torch\.float32 with 31 columns do not fit"):
        mixture.multiply(kernels, x[:, :31].contiguous(), ids, weights)
    with pytest.raises(ValueError, match=r"add_to must be float32 \[3, 32\]"):
        mixture.multiply(kernels, x, ids, weights, add_to=torch.zeros(3, 31))
    with pytest.raises(ValueError, match="not the matrices of one mixture"):
        multiply_experts(
            kernels, EncodedRows(kernels, x, torch.float32), ids, weights, *mixture.packed[::-1]
        )
    with pytest.raises(ValueError, match="expert 4 is not one of 4"):
        mixture.packed[0].pack(kernels, 4, numbers(2, 32))
    with pytest.raises(ValueError, match="1 or more experts, not 0"):
        PackedExperts(0, 32, 16, torch.float32)
    with pytest.raises(ValueError, match="unknown activation 'mish'"):
        gated_activation("mish")
    with pytest.raises(ValueError, match="limit of swiglu_clipped must be positive"):
        gated_activation("swiglu_clipped", limit=0.0)
