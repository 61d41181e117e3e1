"""Reference of convolutions and linear recurrences over one sequence, token by token in float32.

Each function takes the state before its tokens and returns that after them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_EPS = 1e-6  # of the norms of queries and keys


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    *,
    activation: str | None = None,
) -> tuple[Tensor, Tensor]:
    """A causal convolution of each column.

    out[t] = act(bias + sum_j weight[:, j] x[t - width + 1 + j])

    Args:
        x: [num_tokens, columns].
        weight: [columns, width].
        bias: [columns].
        state: [width - 1, columns], the inputs before the first token, oldest first.
        activation: "silu" or None.

    Returns:
        [num_tokens, columns] in x's dtype, and the state, float32.
    """
    width = weight.shape[1]
    inputs = torch.cat([state, x.float()])
    windows = inputs.unfold(0, width, 1)  # [num_tokens, columns, width]
    sums = (windows * weight.float()).sum(-1)
    if bias is not None:
        sums = sums + bias.float()
    if activation == "silu":
        sums = F.silu(sums)
    return sums.to(x.dtype), inputs[inputs.shape[0] - width + 1 :]


def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor,
    rates: Tensor,
    decay_bias: Tensor,
    state: Tensor,
    *,
    beta_scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The gated delta rule (Yang et al. 2024, "Gated Delta Networks", section 3.1).

    With keys and queries of length 1, and each query divided by the root of key_dim:
    S = g S; S += k (s (v - k S)); out = q S, where g = exp(rates softplus(decay + decay_bias)) and
    s = beta_scale sigmoid(beta).

    Args:
        query, key: [num_tokens, num_key_heads, key_dim].
        value: [num_tokens, num_heads, value_dim].
        decay: [num_tokens, num_heads], or [num_tokens, num_heads, key_dim].
        beta: [num_tokens, num_heads].
        rates: [num_heads], negative.
        decay_bias: as decay without its first axis.
        state: S, [num_heads, key_dim, value_dim].

    Returns:
        [num_tokens, num_heads, value_dim] in value's dtype, and the state, float32.
    """
    per_key = value.shape[1] // key.shape[1]
    queries, keys = (_unit(one.float()).repeat_interleave(per_key, dim=1) for one in (query, key))
    queries = queries * key.shape[2] ** -0.5
    logits = decay.float() + decay_bias.float()
    rates = rates.float().view(-1, *[1] * (logits.ndim - 2))
    factors = torch.exp(rates * F.softplus(logits))
    factors = factors.view(*factors.shape[:2], -1, 1)  # [num_tokens, num_heads, key_dim or 1, 1]
    strengths = beta_scale * torch.sigmoid(beta.float())
    outputs = torch.empty(value.shape, dtype=torch.float32, device=value.device)
    for token in range(value.shape[0]):
        k = keys[token].unsqueeze(-1)
        state = state * factors[token]
        update = strengths[token].unsqueeze(-1) * (value[token].float() - (k * state).sum(1))
        state = state + k * update.unsqueeze(1)
        outputs[token] = (queries[token].unsqueeze(-1) * state).sum(1)
    return outputs.to(value.dtype), state


def state_space(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: Tensor,
    rates: Tensor,
    step_bias: Tensor,
    skip: Tensor,
    state: Tensor,
    *,
    min_step: float = 0.0,
    max_step: float = float("inf"),
) -> tuple[Tensor, Tensor]:
    """The recurrence of Mamba 2 (Dao and Gu 2024, "Transformers are SSMs", section 5).

    S = exp(rates d) S + k (d v); out = q S + skip v, where d is softplus(step + step_bias) within
    its limits.

    Args:
        query, key: [num_tokens, num_key_heads, key_dim].
        value: [num_tokens, num_heads, value_dim].
        step: [num_tokens, num_heads].
        rates, step_bias, skip: [num_heads]; the rates are negative.
        state: S, [num_heads, key_dim, value_dim].

    Returns:
        [num_tokens, num_heads, value_dim] in value's dtype, and the state, float32.
    """
    per_key = value.shape[1] // key.shape[1]
    queries, keys = (one.float().repeat_interleave(per_key, dim=1) for one in (query, key))
    sizes = F.softplus(step.float() + step_bias.float()).clamp(min_step, max_step)
    factors = torch.exp(rates.float() * sizes)
    outputs = torch.empty(value.shape, dtype=torch.float32, device=value.device)
    for token in range(value.shape[0]):
        own = value[token].float()
        update = sizes[token].unsqueeze(-1) * own
        state = state * factors[token].view(-1, 1, 1)
        state = state + keys[token].unsqueeze(-1) * update.unsqueeze(1)
        read = (queries[token].unsqueeze(-1) * state).sum(1)
        outputs[token] = read + skip.float().unsqueeze(-1) * own
    return outputs.to(value.dtype), state


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + _EPS)
