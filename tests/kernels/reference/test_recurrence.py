"""The references of recurrences against transformers' models and torch's convolution."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.kimi_linear.modeling_kimi_linear import recurrent_kimi_delta_attention
from transformers.models.mamba2.modeling_mamba2 import (
    mamba2_chunk_scan,
    mamba2_selective_state_update,
)
from transformers.models.qwen3_5.modeling_qwen3_5 import torch_recurrent_gated_delta_rule

from taco_kernels.reference.recurrence import convolve, delta_rule, state_space

TOKENS, HEADS, KEY_HEADS, KEY_DIM, VALUE_DIM = 11, 4, 2, 8, 6


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and a state."""
    query, key = torch.randn(2, TOKENS, KEY_HEADS, KEY_DIM)
    return (
        query,
        key,
        torch.randn(TOKENS, HEADS, VALUE_DIM),
        torch.randn(HEADS, KEY_DIM, VALUE_DIM),
    )


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("num_tokens", [1, 2, 9])
def test_a_convolution_is_torchs_of_a_padded_sequence(
    num_tokens: int, width: int, has_bias: bool, activation: str | None
) -> None:
    x, weight = torch.randn(num_tokens, 10), torch.randn(10, width)
    bias = torch.randn(10) if has_bias else None
    zeros = torch.zeros(width - 1, 10)
    out, state = convolve(x, weight, bias, zeros, activation=activation)
    padded = F.conv1d(x.T, weight.unsqueeze(1), bias, padding=width - 1, groups=10)
    expected = padded[:, :num_tokens].T
    torch.testing.assert_close(out, F.silu(expected) if activation else expected)
    assert torch.equal(state, torch.cat([zeros, x])[-width + 1 :])


@pytest.mark.parametrize("beta_scale", [1.0, 2.0])
def test_the_delta_rule_is_qwens(beta_scale: float) -> None:
    query, key, value, state = inputs()
    decay, beta = torch.randn(2, TOKENS, HEADS)
    rates, bias = -torch.rand(HEADS) * 8, torch.randn(HEADS)
    expected, expected_state = torch_recurrent_gated_delta_rule(
        *(one.unsqueeze(0) for one in (query, key, value)),
        g=(rates * F.softplus(decay + bias)).unsqueeze(0),
        beta=beta_scale * beta.sigmoid().unsqueeze(0),
        initial_state=state.unsqueeze(0),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    out, after = delta_rule(
        query, key, value, decay, beta, rates, bias, state, beta_scale=beta_scale
    )
    torch.testing.assert_close(out, expected[0])
    torch.testing.assert_close(after, expected_state[0])


def test_the_delta_rule_with_a_decay_of_each_column_is_kimis() -> None:
    query, key, value, state = inputs()
    decay, beta = torch.randn(TOKENS, HEADS, KEY_DIM), torch.randn(TOKENS, HEADS)
    rates, bias = -torch.rand(HEADS) * 8, torch.randn(HEADS, KEY_DIM)
    spread = [one.repeat_interleave(HEADS // KEY_HEADS, dim=1) for one in (query, key)]
    expected, expected_state = recurrent_kimi_delta_attention(
        *(one.unsqueeze(0) for one in (*spread, value)),
        (rates.unsqueeze(-1) * F.softplus(decay + bias)).unsqueeze(0),
        beta.sigmoid().unsqueeze(0),
        state.unsqueeze(0),
        True,
        use_qk_l2norm_in_kernel=True,
    )
    out, after = delta_rule(query, key, value, decay, beta, rates, bias, state)
    torch.testing.assert_close(out, expected[0])
    torch.testing.assert_close(after, expected_state[0])


@pytest.mark.parametrize("limits", [(0.0, float("inf")), (0.4, 1.2)])
def test_a_state_space_is_mamba_2s_in_chunks(limits: tuple[float, float]) -> None:
    query, key, value, state = inputs()
    step, (bias, skip) = torch.randn(TOKENS, HEADS), torch.randn(2, HEADS)
    rates = -torch.rand(HEADS) * 8
    expected, expected_state = mamba2_chunk_scan(
        *(one.unsqueeze(0) for one in (value, step)),
        rates,
        *(one.unsqueeze(0) for one in (key, query)),
        chunk_size=4,
        D=skip,
        dt_bias=bias,
        initial_states=state.mT.unsqueeze(0),
        dt_softplus=True,
        dt_limit=limits,
        return_final_states=True,
    )
    out, after = state_space(
        *(query, key, value, step, rates, bias, skip, state),
        min_step=limits[0],
        max_step=limits[1],
    )
    torch.testing.assert_close(out, expected[0], atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(after, expected_state[0].mT, atol=2e-5, rtol=2e-5)


def test_a_state_space_is_mamba_2s_token_by_token() -> None:
    query, key, value, state = inputs()
    step, (bias, skip) = torch.randn(TOKENS, HEADS), torch.randn(2, HEADS)
    rates = -torch.rand(HEADS) * 8
    theirs = state.mT.unsqueeze(0).contiguous()

    def spread(one: Tensor) -> Tensor:
        """Numbers of heads as transformers has them, one for each column of the value."""
        return one.unsqueeze(-1).expand(*one.shape, VALUE_DIM)

    for token in range(TOKENS):
        q, k, v, d = (one[token : token + 1] for one in (query, key, value, step))
        expected = mamba2_selective_state_update(
            *(theirs, v, spread(d), spread(rates).unsqueeze(-1), k, q),
            D=spread(skip),
            dt_bias=spread(bias),
            dt_softplus=True,
        )
        out, state = state_space(q, k, v, d, rates, bias, skip, state)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(state, theirs[0].mT)


@pytest.mark.parametrize("name", ["convolve", "delta_rule", "state_space"])
def test_a_sequence_may_be_cut(name: str) -> None:
    query, key, value, state = inputs()
    (decay, beta), bias, skip = torch.randn(2, TOKENS, HEADS), torch.randn(HEADS), torch.ones(HEADS)
    x, weight, latest = torch.randn(TOKENS, 10), torch.randn(10, 4), torch.randn(3, 10)

    def run(first: int, past: int, state: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v, d, s, inputs = (one[first:past] for one in (query, key, value, decay, beta, x))
        if name == "convolve":
            return convolve(inputs, weight, None, state)
        if name == "delta_rule":
            return delta_rule(q, k, v, d, s, -bias.abs(), bias, state)
        return state_space(q, k, v, d, -bias.abs(), bias, skip, state)

    state = latest if name == "convolve" else state
    whole, last = run(0, TOKENS, state)
    for first, past in ((0, 1), (1, 3), (3, TOKENS)):
        part, state = run(first, past, state)
        torch.testing.assert_close(part, whole[first:past])
    torch.testing.assert_close(state, last)
