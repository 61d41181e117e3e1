"""Sequences that run through a model in chunks of random sizes, beside one another."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from support.architectures.variant import Oracle, token_sequences
from support.models import load_step_model
from support.paged import GivenTokens, PagedRunner

TOLERANCE = 1e-4  # of logits in float32
Sequences = Mapping[str, Sequence[int]]


def three_sequences() -> dict[str, list[int]]:
    """Two of several blocks, and one that is shorter than a block."""
    return dict(zip("abc", token_sequences((52, 3, 40)), strict=True))


def in_chunks(
    runner: PagedRunner,
    sequences: Sequences,
    seed: int = 0,
    given: Mapping[str, GivenTokens] | None = None,
) -> dict[str, Tensor]:
    """The logits of each sequence [tokens, vocab].

    Args:
        given: for all tokens of each sequence.
    """
    rng = random.Random(seed)
    done = dict.fromkeys(sequences, 0)
    logits: dict[str, list[Tensor]] = {name: [] for name in sequences}
    while waiting := [name for name, ids in sequences.items() if done[name] < len(ids)]:
        names = [name for name in waiting if rng.random() < 0.8] or waiting
        spans = {name: (done[name], done[name] + _chunk_size(rng)) for name in names}
        chunks = {name: sequences[name][begin:end] for name, (begin, end) in spans.items()}
        parts = given and {name: given[name].part(*span) for name, span in spans.items()}
        for name, rows in runner.step(chunks, parts).items():
            logits[name].append(rows)
            done[name] += len(rows)
    return {name: torch.cat(rows) for name, rows in logits.items()}


def assert_follows(actual: Mapping[str, Tensor], oracle: Oracle, sequences: Sequences) -> None:
    expected = oracle(list(sequences.values()))
    assert_close(actual, dict(zip(sequences, expected, strict=True)))


def assert_close(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    for name, logits in expected.items():
        torch.testing.assert_close(actual[name], logits, atol=TOLERANCE, rtol=0)


def assert_bits_are_a_sequences_own(
    path: Path,
    dtype: str,
    quantization: str | None,
    sequences: Sequences,
    given: Mapping[str, GivenTokens] | None = None,
) -> dict[str, Tensor]:
    """Neither neighbours nor chunks nor threads change a bit on the CPU kernels.

    Returns:
        The logits.
    """

    def runner(num_threads: int = 2) -> PagedRunner:
        return PagedRunner(
            load_step_model(
                path, "kernels", dtype=dtype, quantization=quantization, num_threads=num_threads
            )
        )

    expected = runner().step(sequences, given)
    alone = {
        name: runner(1).step({name: ids}, given and {name: given[name]})[name]
        for name, ids in sequences.items()
    }
    chunked = [in_chunks(runner(), sequences, seed, given) for seed in (1, 2)]
    for other in (alone, *chunked):
        for name, logits in expected.items():
            assert torch.equal(other[name], logits)
    return expected


def _chunk_size(rng: random.Random) -> int:
    """Often 1, as in decoding."""
    return rng.choice((1, 1, rng.randint(1, 24)))
