"""Token sampling: rows resolved by a few groups of tokens, and rows that are read as a whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from support import sampling_cases as cases
from support.sampling_cases import make_metadata, pick
from support.triton_interpreter import DEVICE
from taco_kernels.sampling_metadata import SamplingMetadata
from taco_kernels.triton.row_statistics import GROUP, TILE
from taco_kernels.triton.sample import DeviceSamplingMetadata, most_likely_tokens, sample_tokens

# A row of this many tokens has more groups than _sample_kernel looks at, and several tiles.
CANDIDATES = 256 * GROUP.value
TILE_SIZE = TILE.value


def sample(logits: Tensor, metadata: SamplingMetadata) -> Tensor:
    """Sample with NaN on both sides of each row, which must not be read as logits."""
    around = torch.full((logits.shape[0], logits.shape[1] + 7), torch.nan, device=DEVICE)
    rows = around[:, 3:-4]
    rows.copy_(logits)
    if not metadata.temperature.any():
        return most_likely_tokens(rows).cpu()
    columns = (getattr(metadata, name) for name in DeviceSamplingMetadata._fields)
    on_device = DeviceSamplingMetadata(*(torch.from_numpy(column).to(DEVICE) for column in columns))
    has_filter = (metadata.min_p > 0) | (metadata.top_k > 0) | (metadata.top_p < 1)
    return sample_tokens(rows, on_device, has_filters=bool(has_filter.any())).cpu()


@given(batch=cases.batches([1, 5, 31, 33, 100, TILE_SIZE - 1, TILE_SIZE + 40]))
@settings(max_examples=12, deadline=None)
def test_each_row_gets_the_token_of_the_definition(batch: tuple[Tensor, SamplingMetadata]) -> None:
    cases.check_each_row(sample, *batch)


@given(batch=cases.batches([CANDIDATES + 1000]))
@settings(max_examples=4, deadline=None)
def test_rows_of_more_tokens_than_candidates_get_the_token_of_the_definition(
    batch: tuple[Tensor, SamplingMetadata],
) -> None:
    cases.check_each_row(sample, *batch)


WIDE_FILTERS = [
    {"top_p": 0.95},
    {"top_p": 0.3},
    {"top_p": 0.9999999},
    {"top_k": 3000},
    {"top_k": 2**30},
    {"top_k": 5000, "top_p": 0.8},
    {"min_p": 0.02},
    {"min_p": 0.02, "top_p": 0.9},
    {"min_p": 0.001, "top_k": 4000, "top_p": 0.9},
]


@pytest.mark.parametrize("filters", WIDE_FILTERS, ids=str)
@pytest.mark.parametrize("spread", [0.3, 1.5])
def test_wide_filters_keep_what_the_definition_says(
    filters: dict[str, float], spread: float
) -> None:
    """Rows flat enough that thousands of tokens stay; the last shares show where the cut is."""
    rng = np.random.default_rng(int(spread * 10))
    logits = rng.standard_normal((3, 2 * CANDIDATES + 77)) * spread
    logits.sort(axis=1)  # the most likely tokens last
    logits[1] = logits[1, ::-1]
    rng.shuffle(logits[2])
    metadata = make_metadata(3, uniforms=[1e-4, 1 - 1e-4, 0.6], **filters)
    cases.check_each_row(sample, torch.from_numpy(logits.astype(np.float32)), metadata)


@pytest.mark.parametrize("filters", [{"top_k": 9000}, {"top_p": 0.7}], ids=str)
def test_a_cut_among_more_equals_than_can_be_collected(filters: dict[str, float]) -> None:
    """The guess cannot be right: the cut is one logit that 9,000 tokens have."""
    logits = torch.full((2, 9500), -1.0)
    logits[:, ::19] = 1.0
    logits[1] += torch.linspace(0.0, 1e-6, 9500)  # some equal, some neighbours
    metadata = make_metadata(2, uniforms=0.9, **filters)
    cases.check_each_row(sample, logits, metadata)


def test_a_sample_that_misses_the_heavy_tokens_leads_to_the_same_cut() -> None:
    """Each run of the sample starts at a multiple of 20 and has 8 tokens: those get no weight."""
    logits = torch.full((1, 512 * 20), -8.0)
    is_sampled = torch.arange(logits.shape[1]) % 20 < 8
    logits[:, ~is_sampled] = torch.linspace(-1.0, 0.0, int((~is_sampled).sum()))
    for filters in ({"top_p": 0.5}, {"top_k": 3000}):
        metadata = make_metadata(1, uniforms=1e-4, **filters)
        cases.check_each_row(sample, logits, metadata)


@pytest.mark.parametrize("vocab_size", [1000, CANDIDATES + 5])
def test_a_token_depends_on_its_row_alone(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    logits = torch.from_numpy(rng.standard_normal((5, vocab_size)).astype(np.float32))
    metadata = make_metadata(
        5,
        temperature=[0.0, 1.0, 1.5, 0.7, 1.0],
        min_p=[0.0, 0.0, 0.0, 0.01, 0.01],
        top_k=[0, 0, 0, 50, 5000],
        top_p=[1.0, 1.0, 0.9, 1.0, 0.5],
        uniforms=rng.random(5),
    )
    tokens = sample(logits, metadata).tolist()
    for row, token in enumerate(tokens):
        assert sample(logits[row : row + 1], pick(metadata, row)).tolist() == [token]
    logits[::2] = torch.nan
    assert sample(logits, metadata).tolist()[1::2] == tokens[1::2]


@pytest.mark.parametrize("size", [1, 3, 33, TILE_SIZE, TILE_SIZE + 1])
def test_the_most_likely_token_is_that_of_torch(size: int) -> None:
    cases.check_most_likely(sample, size)


def test_tokens_are_sampled_in_proportion_to_their_weight() -> None:
    cases.check_shares_of_tokens(sample)


@pytest.mark.parametrize("share", [0.0, 1.0 - 2.0**-52])
@pytest.mark.parametrize("size", [3, GROUP.value + 9, 3 * TILE_SIZE])
def test_smallest_and_largest_uniforms_sample_tokens_with_weight(share: float, size: int) -> None:
    cases.check_only_tokens_of_weight(sample, share, size)


@pytest.mark.parametrize("size", [1000, CANDIDATES + 100])
def test_a_filter_keeps_all_tokens_that_tie(size: int) -> None:
    cases.check_ties_are_kept(sample, size, num_ties=4)


def test_a_wide_nucleus_holds_the_most_likely_tokens() -> None:
    cases.check_wide_nucleus(sample, 2 * CANDIDATES, num_shares=3)


@settings(max_examples=5, deadline=None)
@given(st.data())
def test_shares_split_a_row_of_several_tiles_as_its_weights_do(data: st.DataObject) -> None:
    """Logits of powers of two, so that float64 has no rounding to forgive."""
    size = data.draw(st.sampled_from([2 * TILE_SIZE, 3 * TILE_SIZE + 100]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    powers = rng.integers(0, 6, size)
    weights = 0.5**powers
    cdf = np.cumsum(weights) / weights.sum()
    expected = rng.choice(size, 4)
    shares = cdf[expected] - weights[expected] / weights.sum() / 2
    logits = np.tile(-powers * np.log(2), (4, 1)).astype(np.float32)
    # Half of the lightest token's share is many times what float32 may be wrong by.
    assert sample(torch.from_numpy(logits), make_metadata(4, uniforms=shares)).tolist() == (
        expected.tolist()
    )


def test_no_rows_give_no_tokens() -> None:
    assert sample(torch.zeros(0, 10), SamplingMetadata.greedy(0)).tolist() == []


def test_wrong_arguments_are_rejected() -> None:
    logits = torch.zeros(2, 10, device=DEVICE)
    with pytest.raises(ValueError, match="float32 rows"):
        most_likely_tokens(logits.double())
    with pytest.raises(ValueError, match="float32 rows"):
        most_likely_tokens(logits.T)
    with pytest.raises(ValueError, match="1 to 1048576 logits"):
        most_likely_tokens(logits[:, :0])
    ones = torch.ones(2, device=DEVICE)
    with pytest.raises(ValueError, match=r"top_k must be torch.int32 \[2\]"):
        sample_tokens(
            logits, DeviceSamplingMetadata(ones, ones, ones, ones, ones), has_filters=True
        )
