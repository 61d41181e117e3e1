import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from taco_worker.sampling.top_k_top_p import Filters, draw_tokens, inverse_cdf


@given(st.data(), st.sampled_from([1, 2, 63, 64, 65, 130]))
def test_tokens_are_sampled_in_proportion_to_their_weight(data: st.DataObject, size: int) -> None:
    """With integer weights every sum is exact: share (k + 1/2) / total selects one token."""
    weights = data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    if not any(weights):
        weights[data.draw(st.integers(0, size - 1))] = 1
    total = sum(weights)
    shares = (torch.arange(total, dtype=torch.float64) + 0.5) / total
    rows = torch.tensor(weights, dtype=torch.float32).repeat(total, 1)
    expected = np.repeat(np.arange(size), weights).tolist()
    assert inverse_cdf(rows, shares).tolist() == expected


@pytest.mark.parametrize("share", [0.0, 1.0 - 2.0**-52])
@pytest.mark.parametrize("size", [3, 64, 200, 1000])
def test_smallest_and_largest_uniforms_sample_tokens_with_weight(share: float, size: int) -> None:
    weights = torch.zeros(3, size)
    weights[0, 0] = weights[1, size // 2] = weights[2, size - 1] = 1e-30
    chosen = inverse_cdf(weights, torch.full((3,), share, dtype=torch.float64))
    assert chosen.tolist() == [0, size // 2, size - 1]


def test_rounding_never_chooses_a_token_without_weight() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(4000, 193, generator=generator) ** 20
    weights[torch.rand(weights.shape, generator=generator) < 0.8] = 0.0
    weights[:, 7] = 1e-20
    shares = torch.full((4000,), 1.0 - 2.0**-52, dtype=torch.float64)
    chosen = inverse_cdf(weights, shares)
    assert (weights.gather(1, chosen.unsqueeze(1)) > 0).all()


@pytest.mark.parametrize("size", [3, 64, 384, 1000])
@pytest.mark.parametrize("logit", [-torch.inf, torch.nan])
def test_a_row_without_a_valid_token_does_not_affect_others(logit: float, size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, size, generator=generator)
    shares = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    alone = draw_tokens(logits, torch.ones(3), shares, Filters())
    logits[1] = logit
    chosen = draw_tokens(logits, torch.ones(3), shares, Filters())
    assert 0 <= chosen[1] < size
    assert chosen[[0, 2]].tolist() == alone[[0, 2]].tolist()
