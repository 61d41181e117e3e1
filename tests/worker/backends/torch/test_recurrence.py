"""Convolutions and linear recurrences of a step's sequences in torch against the reference."""

from __future__ import annotations

import pytest
import torch

from support.recurrences import (
    STEPS,
    Convolution,
    Delta,
    Recurrence,
    Space,
    make_memory,
    run_cut,
    run_reference,
    split,
)
from taco_worker.layers.torch_ops import TorchOps

RECURRENCES: tuple[Recurrence, ...] = (
    Convolution(),
    Convolution(has_bias=False, activation=None, width=2),
    Delta(beta_scale=2.0),
    Delta(decays_columns=True),
    Space(min_step=0.5, max_step=1.5),
)
CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("recurrence", RECURRENCES, ids=str)
def test_agrees_with_the_reference(recurrence: Recurrence, step: str, dtype: torch.dtype) -> None:
    tokens = recurrence.tokens(STEPS[step].num_tokens, dtype)
    memory = make_memory(recurrence, STEPS[step], CPU)
    outputs, after = run_reference(recurrence, tokens, memory, STEPS[step])
    ours = recurrence.run(TorchOps(), tokens, memory, STEPS[step].states(CPU))
    assert ours.dtype == dtype
    torch.testing.assert_close(split(ours, STEPS[step]), outputs)
    # The rows that no sequence writes are NaN, or as before.
    torch.testing.assert_close(memory, after, equal_nan=True)


@pytest.mark.parametrize("recurrence", RECURRENCES, ids=str)
def test_a_sequence_may_be_cut(recurrence: Recurrence) -> None:
    tokens = recurrence.tokens(11, torch.float32)
    whole = run_cut(recurrence, TorchOps(), tokens, [11], CPU)
    for lengths in ([1] * 11, [2, 1, 6, 2], [5, 6]):
        cut = run_cut(recurrence, TorchOps(), tokens, lengths, CPU)
        torch.testing.assert_close(cut, whole)
