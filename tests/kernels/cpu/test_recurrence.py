"""Convolutions and recurrences on the CPU against the reference, sequence by sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.cpu_kernels import EMULATED, NATIVE, kernels_of
from taco_kernels.cpu import recurrence
from taco_kernels.cpu.recurrence import SequenceRows
from taco_kernels.library import CpuKernels
from taco_kernels.reference import recurrence as reference

# The kernel and the reference of an op with its numbers, over the tokens [first, past).
Kernel = Callable[[CpuKernels, SequenceRows], Tensor]
Reference = Callable[[int, int, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Case:
    kernel: Kernel
    reference: Reference
    state_shape: tuple[int, ...]


def inside(*shape: int) -> Tensor:
    """Tokens with NaN between them."""
    size = torch.Size(shape[1:]).numel()
    around = torch.full((shape[0], size + 3), torch.nan)
    around[:, :size] = torch.randn(shape[0], size)
    return around[:, :size].unflatten(1, shape[1:])


def convolution(num_tokens: int, columns: int, width: int, *, full: bool) -> Case:
    x, weight = inside(num_tokens, columns), torch.randn(columns, width)
    bias = torch.randn(columns) if full else None
    return Case(
        lambda kernels, rows: recurrence.convolve(
            kernels, x.clone(), weight, bias, rows, has_silu=full
        ),
        lambda first, past, state: reference.convolve(
            x[first:past], weight, bias, state, activation="silu" if full else None
        ),
        (width - 1, columns),
    )


def delta_rule(num_tokens: int, dims: tuple[int, int], *, by_column: bool) -> Case:
    key_dim, value_dim = dims
    num_heads, num_key_heads = 4, 2
    query, key = (inside(num_tokens, num_key_heads, key_dim) for _ in range(2))
    value = inside(num_tokens, num_heads, value_dim)
    decay_shape = (num_heads, key_dim) if by_column else (num_heads,)
    decay, beta = inside(num_tokens, *decay_shape), inside(num_tokens, num_heads)
    rates, bias = -torch.rand(num_heads) - 0.1, torch.randn(decay_shape)

    def kernel(kernels: CpuKernels, rows: SequenceRows) -> Tensor:
        q, k, v, d, s = (one.clone() for one in (query, key, value, decay, beta))
        return recurrence.delta_rule(kernels, q, k, v, d, s, rates, bias, rows, beta_scale=2.0)

    def expected(first: int, past: int, state: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v, d, s = (one[first:past] for one in (query, key, value, decay, beta))
        return reference.delta_rule(q, k, v, d, s, rates, bias, state, beta_scale=2.0)

    return Case(kernel, expected, (num_heads, key_dim, value_dim))


def state_space(num_tokens: int, dims: tuple[int, int]) -> Case:
    key_dim, value_dim = dims
    num_heads, num_key_heads = 3, 1
    query, key = (inside(num_tokens, num_key_heads, key_dim) for _ in range(2))
    value, step = inside(num_tokens, num_heads, value_dim), inside(num_tokens, num_heads)
    rates, bias, skip = -torch.rand(num_heads), torch.randn(num_heads), torch.randn(num_heads)
    limits = {"min_step": 0.2, "max_step": 1.5}

    def kernel(kernels: CpuKernels, rows: SequenceRows) -> Tensor:
        q, k, v, d = (one.clone() for one in (query, key, value, step))
        return recurrence.state_space(kernels, q, k, v, d, rates, bias, skip, rows, **limits)

    def expected(first: int, past: int, state: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v, d = (one[first:past] for one in (query, key, value, step))
        return reference.state_space(q, k, v, d, rates, bias, skip, state, **limits)

    return Case(kernel, expected, (num_heads, key_dim, value_dim))


def ints(numbers: Sequence[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def make_case(kind: str, num_tokens: int, dims: tuple[int, int]) -> Case:
    match kind:
        case "convolve":
            return convolution(num_tokens, 7 * dims[1], 2 + dims[0] % 7, full=dims[0] % 2 == 0)
        case "delta_rule":
            return delta_rule(num_tokens, dims, by_column=False)
        case "delta_rule by column":
            return delta_rule(num_tokens, dims, by_column=True)
        case _:
            return state_space(num_tokens, dims)


KINDS = ("convolve", "delta_rule", "delta_rule by column", "state_space")


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(KINDS),
    lens=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    dims=st.tuples(st.integers(1, 40), st.sampled_from([1, 16, 33, 50])),
    threads=st.integers(1, 3),
    data=st.data(),
)
def test_sequences_follow_the_reference(
    isa: str,
    kind: str,
    lens: list[int],
    dims: tuple[int, int],
    threads: int,
    data: st.DataObject,
) -> None:
    torch.manual_seed(sum(lens))
    case = make_case(kind, sum(lens), dims)
    size = torch.Size(case.state_shape).numel()
    memory = torch.randn(3 * len(lens), size)
    starts = [sum(lens[:index]) for index in range(len(lens) + 1)]
    # Rows of each sequence: its own, another source or none, and one to save.
    own = [3 * index for index in range(len(lens))]
    sources = [data.draw(st.sampled_from([row, row + 1, -1])) for row in own]
    saved = [data.draw(st.integers(0, length)) for length in lens]
    expected_memory, expected = memory.clone(), []
    for row, source, after, (first, past) in zip(
        own, sources, saved, pairwise(starts), strict=True
    ):
        state = torch.zeros(size) if source < 0 else memory[source]
        state = state.view(case.state_shape)
        if first == past:
            continue
        if after:
            part, state = case.reference(first, first + after, state)
            expected.append(part)
            expected_memory[row + 2] = state.flatten()
        if first + after < past:
            part, state = case.reference(first + after, past, state)
            expected.append(part)
        expected_memory[row] = state.flatten()
    rows = SequenceRows(
        memory, ints(starts), ints(own), ints(sources), ints(saved), ints([r + 2 for r in own])
    )

    out = case.kernel(kernels_of(isa, threads), rows)

    if expected:
        torch.testing.assert_close(out, torch.cat(expected), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(memory, expected_memory, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_steps_and_threads(isa: str, kind: str) -> None:
    torch.manual_seed(1)
    case = make_case(kind, 9, (20, 50))
    size = torch.Size(case.state_shape).numel()

    def run(threads: int, saved: int) -> tuple[Tensor, Tensor]:
        memory = torch.zeros(2, size)
        rows = SequenceRows(memory, *map(ints, ([0, 9], [0], [-1], [saved], [1])))
        return case.kernel(kernels_of(isa, threads), rows), memory

    whole, after = run(1, 0)
    again, saved = run(3, 4)
    assert torch.equal(whole, again)
    assert torch.equal(after[0], saved[0])
    rest, last = continue_case(case, saved[1], isa)
    assert torch.equal(rest, whole[4:])
    assert torch.equal(last, after[0])


def continue_case(case: Case, state: Tensor, isa: str) -> tuple[Tensor, Tensor]:
    """Runs tokens 4 to 9 after `state`: tokens 0 to 4 are another sequence."""
    memory = torch.zeros(2, state.numel())
    memory[1] = state
    rows = SequenceRows(memory, *map(ints, ([0, 4, 9], [0, 1], [-1, 1], [0, 0], [0, 0])))
    return case.kernel(kernels_of(isa, 2), rows)[4:], memory[1]
