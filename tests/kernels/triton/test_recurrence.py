"""Convolutions and linear recurrences of a step's sequences against the reference."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from support.recurrences import (
    DECODE,
    MIXED,
    STEPS,
    Convolution,
    Delta,
    Recurrence,
    Space,
    Step,
    make_memory,
    run_cut,
    run_reference,
    split,
)
from taco_kernels.triton.recurrence.convolve import convolve
from taco_kernels.triton.recurrence.delta_rule import delta_rule
from taco_kernels.triton.recurrence.state_space import state_space
from taco_worker.layers.triton_ops import TritonOps

pytestmark = pytest.mark.usefixtures("tensors_on_device")

RECURRENCES: tuple[Recurrence, ...] = (Convolution(), Delta(), Space())
# Sizes that are no powers of two, several blocks of columns, and the options.
VARIANTS: tuple[Recurrence, ...] = (
    Convolution(columns=600, width=3, has_bias=False, activation=None),
    Convolution(columns=40, width=2),
    Convolution(columns=40, width=20),  # wider than a tile of tokens
    Delta(heads=3, key_heads=1, key_dim=24, value_dim=40),
    Delta(heads=2, key_heads=1, key_dim=128, value_dim=20, beta_scale=2.0),
    Delta(heads=2, key_heads=2, key_dim=20, value_dim=12, decays_columns=True),
    Space(heads=3, key_heads=1, key_dim=24, value_dim=40, min_step=0.5, max_step=1.5),
    Space(heads=2, key_heads=1, key_dim=128, value_dim=20),
)
TOLERANCES: dict[torch.dtype, dict[str, Any]] = {
    torch.float32: {"atol": 2e-5, "rtol": 2e-5},
    torch.float16: {"atol": 1e-3, "rtol": 2e-3},
    torch.bfloat16: {"atol": 1e-2, "rtol": 1e-2},
}


def check(
    recurrence: Recurrence,
    step: Step,
    dtype: torch.dtype,
    device: torch.device,
    max_query_len: int = 0,
) -> None:
    tokens = recurrence.tokens(step.num_tokens, dtype)
    memory = make_memory(recurrence, step, device)
    outputs, after = run_reference(recurrence, tokens, memory, step)
    ours = recurrence.run(TritonOps(), tokens, memory, step.states(device, max_query_len))
    assert ours.dtype == dtype
    assert ours.is_contiguous()
    assert len(ours) == step.num_tokens
    torch.testing.assert_close(split(ours, step), outputs, **TOLERANCES[dtype])
    # The rows that no sequence writes are NaN, or as before.
    torch.testing.assert_close(memory, after, equal_nan=True, **TOLERANCES[torch.float32])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("recurrence", RECURRENCES, ids=str)
def test_agrees_with_the_reference(
    recurrence: Recurrence, dtype: torch.dtype, device: torch.device
) -> None:
    check(recurrence, MIXED, dtype, device)


@pytest.mark.parametrize("recurrence", VARIANTS, ids=str)
def test_all_options(recurrence: Recurrence, device: torch.device) -> None:
    check(recurrence, replace(MIXED, query_lens=(5, 0, 1, 2, 0, 19)), torch.float32, device)


@pytest.mark.parametrize("max_query_len", [0, 16, 64])
@pytest.mark.parametrize("step", [name for name in STEPS if name != "mixed"])
@pytest.mark.parametrize("recurrence", RECURRENCES, ids=str)
def test_lengths_on_the_host_are_upper_bounds(
    recurrence: Recurrence, step: str, max_query_len: int, device: torch.device
) -> None:
    check(recurrence, STEPS[step], torch.float32, device, max_query_len)


@pytest.mark.parametrize("recurrence", RECURRENCES, ids=str)
def test_bits_do_not_depend_on_how_a_sequence_is_cut(
    recurrence: Recurrence, device: torch.device
) -> None:
    tokens = recurrence.tokens(23, torch.bfloat16)
    whole = run_cut(recurrence, TritonOps(), tokens, [23], device)
    for lengths in ([1] * 23, [2, 1, 18, 2], [5, 5, 13]):
        cut = run_cut(recurrence, TritonOps(), tokens, lengths, device)
        assert torch.equal(cut[0], whole[0])
        assert torch.equal(cut[1], whole[1])


@pytest.mark.parametrize("recurrence", RECURRENCES, ids=str)
def test_bits_do_not_depend_on_other_sequences(
    recurrence: Recurrence, device: torch.device
) -> None:
    tokens = recurrence.tokens(MIXED.num_tokens, torch.float32)
    memory = make_memory(recurrence, MIXED, device)
    before = memory.clone()
    outputs = recurrence.run(TritonOps(), tokens, memory, MIXED.states(device))
    for index, (first, past) in enumerate(pairwise(MIXED.query_start)):
        if first < past:
            alone, row = before.clone(), MIXED.rows[index]
            step = Step.of_one(past - first, MIXED.sources[index], row)
            part = [x[first:past] for x in tokens]
            ours = recurrence.run(TritonOps(), part, alone, step.states(device))
            assert torch.equal(ours, outputs[first:past])
            assert torch.equal(alone[row], memory[row])


@pytest.mark.parametrize("recurrence", RECURRENCES, ids=str)
def test_nan_is_not_hidden_and_stays_in_its_sequence(
    recurrence: Recurrence, device: torch.device
) -> None:
    for index in range(len(recurrence.tokens(3, torch.float32))):
        tokens = recurrence.tokens(3, torch.float32)
        tokens[index][1] = torch.nan
        memory = make_memory(recurrence, DECODE, device)
        out = recurrence.run(TritonOps(), tokens, memory, DECODE.states(device))
        assert out[1].isnan().all()
        assert out[[0, 2]].isfinite().all()


def test_small_steps_keep_their_digits(device: torch.device) -> None:
    """A state's update is proportional to softplus of the step, here exp(-14) and less."""
    recurrence, step = Space(), Step.of_one(1, -1)
    tokens = recurrence.tokens(1, torch.float32)
    tokens[3].sub_(16.0)
    memory = make_memory(recurrence, step, device)
    _, after = run_reference(recurrence, tokens, memory, step)
    recurrence.run(TritonOps(), tokens, memory, step.states(device))
    torch.testing.assert_close(memory[0], after[0], rtol=1e-5, atol=0.0)


def test_error_names_the_mismatch(device: torch.device) -> None:
    states, ones = DECODE.states(device), torch.ones
    memory, x = ones(4, 3, 8), ones(3, 8)
    run: Any = convolve
    with pytest.raises(ValueError, match="width 1 and 'silu'"):
        run(x, ones(8, 1), None, memory, states, activation="silu")
    with pytest.raises(ValueError, match="silu or no activation, not width 4 and 'gelu'"):
        run(x, ones(8, 4), None, memory, states, activation="gelu")
    with pytest.raises(ValueError, match=r"memory of states .*\[num_rows, 3, 8\].*\[4, 2, 8\]"):
        run(x, ones(8, 4), None, memory[:, :2], states, activation=None)
    with pytest.raises(ValueError, match=r"x must be .*\[3, 8\] with adjacent numbers"):
        run(ones(8, 3).T, ones(8, 4), None, memory, states, activation=None)
    with pytest.raises(ValueError, match=r"bias must be contiguous .*\[8\], not .*\[7\]"):
        run(x, ones(8, 4), ones(7), memory, states, activation=None)
    wrong = replace(states, sources=states.sources.long())
    with pytest.raises(ValueError, match=r"sources must be contiguous int32 \[3\], not .*int64"):
        run(x, ones(8, 4), None, memory, wrong, activation=None)


@pytest.mark.parametrize("name", ["delta_rule", "state_space"])
def test_error_names_the_mismatch_of_heads(name: str, device: torch.device) -> None:
    def run(query: Tensor, key: Tensor, value: Tensor, gates: Tensor) -> None:
        states, memory, heads = DECODE.states(device), torch.ones(12, 4, 8, 6), torch.ones(4)
        if name == "delta_rule":
            delta_rule(
                *(query, key, value, gates, gates, heads, heads, memory, states), beta_scale=1.0
            )
        else:
            state_space(
                *(query, key, value, gates, heads, heads, heads, memory, states),
                min_step=0.0,
                max_step=1.0,
            )

    key, value, gates = torch.ones(3, 2, 8), torch.ones(3, 4, 6), torch.ones(3, 4)
    run(key, key, value, gates)
    with pytest.raises(ValueError, match=r"must divide .*\[3, 3, 8\] and \[3, 4, 6\]"):
        run(key, torch.ones(3, 3, 8), value, gates)
    with pytest.raises(ValueError, match=r"query must be .*\[3, 2, 8\].*\[3, 2, 7\]"):
        run(torch.ones(3, 2, 7), key, value, gates)
    with pytest.raises(ValueError, match=r"(decay|step) must be .*\[3, 4\].*\[3, 5\]"):
        run(key, key, value, torch.ones(3, 5))
