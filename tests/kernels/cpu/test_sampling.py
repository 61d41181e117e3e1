"""Tokens against what the sampler's own torch path says is in tests/worker/sampling; here the
kernels alone: shapes and sizes around groups and segments, bits, limits."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from support import sampling_cases as cases
from support.cpu_kernels import EMULATED, NATIVE, kernels_of
from support.sampling_cases import make_metadata, pick
from taco_kernels.cpu.sampling import (
    gather_logprobs,
    mask_logits,
    penalize,
    penalty_scratch,
    sample_tokens,
)
from taco_kernels.cpu.token_masks import MaskColumns
from taco_kernels.library import CpuKernels
from taco_kernels.sampling_metadata import Array, Penalties, SamplingMetadata

GROUP, SEGMENT = 256, 64 * 256
VOCAB_SIZES = [1, 5, 16, 100, GROUP - 1, GROUP, 3 * GROUP + 7]


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
@given(batch=cases.batches(VOCAB_SIZES))
@settings(max_examples=60, deadline=None)
def test_each_row_gets_the_token_of_the_definition(
    isa: str, batch: tuple[torch.Tensor, SamplingMetadata]
) -> None:
    cases.check_each_row(partial(sample_tokens, kernels_of(isa, 2)), *batch)


@pytest.mark.parametrize("vocab_size", [GROUP, 1000, 2 * SEGMENT + 3 * GROUP + 5])
def test_a_token_depends_on_its_row_alone(cpu_kernels: CpuKernels, vocab_size: int) -> None:
    """Not on other rows, their number, or threads: fewer rows than threads share each row."""
    rng = np.random.default_rng(vocab_size)
    num_rows = 8
    logits = torch.from_numpy(rng.standard_normal((num_rows, vocab_size)).astype(np.float32))
    metadata = make_metadata(
        num_rows,
        temperature=[0.0, 1.0, 1.5, 0.7, 1.0, 1.0, 1.0, 1.0],
        min_p=[0.0, 0.0, 0.0, 0.0, 0.01, 0.0, 0.0, 0.01],
        top_k=[0, 0, 0, 50, 0, 5000, 50, 5000],
        top_p=[1.0, 1.0, 0.9, 1.0, 1.0, 1.0, 0.9, 0.5],
        uniforms=rng.random(num_rows),
    )
    tokens = sample_tokens(cpu_kernels, logits, metadata).tolist()
    for num_threads in (1, 3):
        kernels = kernels_of(cpu_kernels.isa, num_threads)
        assert sample_tokens(kernels, logits, metadata).tolist() == tokens
        for row in range(num_rows):
            alone = sample_tokens(kernels, logits[row : row + 1], pick(metadata, row))
            assert alone.tolist() == [tokens[row]]
    wider = torch.full((num_rows, vocab_size + 3), torch.nan)
    wider[:, :vocab_size] = logits
    assert sample_tokens(cpu_kernels, wider[:, :vocab_size], metadata).tolist() == tokens


@pytest.mark.parametrize("size", [1, 3, 17, GROUP, GROUP + 1, SEGMENT + 1])
def test_the_most_likely_token_is_that_of_torch(cpu_kernels: CpuKernels, size: int) -> None:
    cases.check_most_likely(partial(sample_tokens, cpu_kernels), size)


def test_tokens_are_sampled_in_proportion_to_their_weight(cpu_kernels: CpuKernels) -> None:
    cases.check_shares_of_tokens(partial(sample_tokens, cpu_kernels))


@pytest.mark.parametrize("share", [0.0, 1.0 - 2.0**-52])
@pytest.mark.parametrize("size", [3, GROUP + 9, 3 * GROUP])
def test_smallest_and_largest_uniforms_sample_tokens_with_weight(
    cpu_kernels: CpuKernels, share: float, size: int
) -> None:
    cases.check_only_tokens_of_weight(partial(sample_tokens, cpu_kernels), share, size)


def test_a_filter_keeps_all_tokens_that_tie(cpu_kernels: CpuKernels) -> None:
    cases.check_ties_are_kept(partial(sample_tokens, cpu_kernels), 1000, num_ties=30)


def test_a_wide_nucleus_holds_the_most_likely_tokens(cpu_kernels: CpuKernels) -> None:
    cases.check_wide_nucleus(partial(sample_tokens, cpu_kernels), 2 * SEGMENT, 300)


@pytest.mark.parametrize("size", [5, GROUP + 40, SEGMENT + 300])
def test_log_probabilities_and_ranks(cpu_kernels: CpuKernels, size: int) -> None:
    num_top = np.array([0, 5, 1, min(size, 300)], dtype=np.int32)
    cases.check_logprobs(partial(gather_logprobs, cpu_kernels), size, num_top)


def test_log_probabilities_do_not_depend_on_other_rows_nor_on_threads(
    cpu_kernels: CpuKernels,
) -> None:
    rng = np.random.default_rng(1)
    logits = torch.from_numpy(rng.standard_normal((6, 3000)).astype(np.float32))
    token_ids, num_top = rng.integers(0, 3000, 6), np.full(6, 9, dtype=np.int32)
    together = gather_logprobs(cpu_kernels, logits, token_ids, num_top)
    for row in range(6):
        chosen = slice(row, row + 1)
        alone = gather_logprobs(
            kernels_of(cpu_kernels.isa, 3), logits[chosen], token_ids[chosen], num_top[chosen]
        )
        for whole, part in zip(together, alone, strict=True):
            assert np.array_equal(whole[chosen], part)


def test_equal_logits_are_ranked_by_their_ids(cpu_kernels: CpuKernels) -> None:
    cases.check_logprobs_of_equals(partial(gather_logprobs, cpu_kernels), 2 * GROUP)


def test_a_nan_makes_a_row_of_nans_and_no_other(cpu_kernels: CpuKernels) -> None:
    cases.check_logprobs_of_nan(partial(gather_logprobs, cpu_kernels))


def _penalize(kernels: CpuKernels) -> cases.Penalize:
    """`penalize`, and a check that its counters are 0 for the next call."""

    def call(logits: torch.Tensor, tokens: torch.Tensor, penalties: Penalties) -> None:
        scratch = penalty_scratch(kernels, logits.shape[1])
        penalize(kernels, logits, tokens, penalties, scratch)
        assert not scratch.any()

    return call


def test_penalties_change_what_their_definition_says(cpu_kernels: CpuKernels) -> None:
    cases.check_penalties(_penalize(cpu_kernels), *cases.make_penalties())


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_sequence_shorter_than_an_ngram_changes_nothing(
    cpu_kernels: CpuKernels, size: int
) -> None:
    cases.check_short_sequence(_penalize(cpu_kernels), size)


@pytest.mark.parametrize("vocab_size", [1, 15, 16, 17, 32, 33, GROUP, SEGMENT + 300])
def test_masks_ban_what_they_do_not_allow(cpu_kernels: CpuKernels, vocab_size: int) -> None:
    def mask(logits: torch.Tensor, rows: Array, bits: Array) -> None:
        mask_logits(cpu_kernels, logits, MaskColumns.of(rows, bits, logits.shape[0]))

    cases.check_masks(mask, vocab_size)


def test_wrong_arguments_are_rejected(cpu_kernels: CpuKernels) -> None:
    logits, metadata = torch.zeros(2, 10), SamplingMetadata.greedy(2)
    tokens = torch.zeros(1, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="float32 rows"):
        sample_tokens(cpu_kernels, logits.double(), metadata)
    with pytest.raises(ValueError, match="float32 rows"):
        sample_tokens(cpu_kernels, logits.T, SamplingMetadata.greedy(10))
    with pytest.raises(ValueError, match=r"float32 \[3\]"):
        sample_tokens(cpu_kernels, torch.zeros(3, 10), metadata)
    columns, floats = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32)
    rows = np.zeros(0, dtype=np.int64)
    nothing = Penalties(rows, columns, columns, columns, floats, floats, floats, columns)
    with pytest.raises(ValueError, match="int32 rows"):
        penalize(cpu_kernels, logits, torch.zeros(1, 1), nothing, penalty_scratch(cpu_kernels, 10))
    with pytest.raises(ValueError, match=r"scratch must be int32 \[\d+, 10\]"):
        penalize(cpu_kernels, logits, tokens, nothing, penalty_scratch(cpu_kernels, 11))
    bits, of_row = np.zeros((1, 1), dtype=np.int32), np.zeros(2, dtype=np.int32)
    for masks, message in (
        (MaskColumns(np.zeros((1, 2), dtype=np.int32), of_row), r"int32 \[any, 1\]"),
        (MaskColumns(bits.astype(np.int64), of_row), r"int32 \[any, 1\]"),
        (MaskColumns(bits, of_row[:1]), r"int32 \[2\]"),
        (MaskColumns(np.zeros((4, 1), dtype=np.int32)[::2], of_row), "contiguous"),
    ):
        with pytest.raises(ValueError, match=message):
            mask_logits(cpu_kernels, logits, masks)
