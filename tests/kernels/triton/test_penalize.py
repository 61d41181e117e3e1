"""Penalties over sequences of tokens; the scratch is zero again afterwards."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from support import sampling_cases as cases
from support.triton_interpreter import DEVICE
from taco_kernels.sampling_metadata import Penalties
from taco_kernels.triton import penalize as kernels
from taco_kernels.triton.penalize import PenaltyColumns


def penalize(logits: Tensor, tokens: Tensor, penalties: Penalties, max_num_seqs: int = 100) -> None:
    scratch = kernels.penalty_scratch(logits.shape[1], max_num_seqs, DEVICE)
    columns = (getattr(penalties, name) for name in PenaltyColumns._fields)
    on_device = PenaltyColumns(*(torch.from_numpy(column).to(DEVICE) for column in columns))
    changed = logits.to(DEVICE)
    kernels.penalize(changed, tokens.to(DEVICE), on_device, scratch)
    logits.copy_(changed)
    assert not scratch.any()


def test_penalties_change_what_their_definition_says() -> None:
    cases.check_penalties(penalize, *cases.make_penalties())


def test_programs_that_take_several_sequences_change_the_same() -> None:
    logits, tokens, penalties = cases.make_penalties()
    expected = logits.clone()
    penalize(expected, tokens, penalties)
    penalize(logits, tokens, penalties, max_num_seqs=2)
    assert torch.equal(logits, expected)


def test_sequences_longer_than_a_block_and_tables_with_other_tokens() -> None:
    rng = np.random.default_rng(5)
    logits = torch.from_numpy(rng.standard_normal((3, 60)).astype(np.float32))
    tokens = torch.full((3, 9000), 2**31 - 1, dtype=torch.int32)  # no token: never to be looked up
    lengths = np.array([8500, 4097, 1], dtype=np.int32)
    for sequence, length in zip(tokens, lengths, strict=True):
        sequence[:length] = torch.from_numpy(rng.integers(0, 40, length))
    penalties = Penalties(
        rows=np.array([2, 0, 1]),
        sequences=np.array([0, 1, 2], dtype=np.int32),
        starts=np.array([4000, 4096, 1], dtype=np.int32),
        lengths=lengths,
        repetition=np.array([1.3, 1.0, 0.5], dtype=np.float32),
        presence=np.array([0.5, 0.1, 1.0], dtype=np.float32),
        frequency=np.array([0.001, 0.0, 1.0], dtype=np.float32),
        ngram_size=np.array([3, 2, 1], dtype=np.int32),
    )
    cases.check_penalties(penalize, logits, tokens, penalties)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_sequence_shorter_than_an_ngram_changes_nothing(size: int) -> None:
    cases.check_short_sequence(penalize, size)


def test_wrong_arguments_are_rejected() -> None:
    logits, tokens, _ = cases.make_penalties()
    logits, tokens = logits.to(DEVICE), tokens.to(DEVICE)
    empty = PenaltyColumns(*(torch.zeros(0, device=DEVICE) for _ in PenaltyColumns._fields))
    scratch = kernels.penalty_scratch(50, 4, DEVICE)
    with pytest.raises(ValueError, match="int32 rows"):
        kernels.penalize(logits, logits, empty, scratch)
    with pytest.raises(ValueError, match=r"scratch must be int32 \[any, 50\]"):
        kernels.penalize(logits, tokens, empty, scratch[:, 1:])
    with pytest.raises(ValueError, match=r"rows must be torch.int64 \[0\]"):
        kernels.penalize(logits, tokens, empty, scratch)
