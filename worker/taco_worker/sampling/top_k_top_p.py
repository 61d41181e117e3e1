"""Draws random tokens from logits: temperature, min_p, top_k, top_p, inverse CDF.

A row's token depends on that row alone, bit for bit. Sums along a row use operations that torch
runs row by row (softmax, cumsum), or cover a fixed number of elements.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# Candidates to look at first: the nucleus seldom needs more; sorting the vocabulary costs 20 times.
_NUCLEUS_CANDIDATES = 64
_GROUP_SIZE = 64


@dataclass(frozen=True, slots=True)
class RowValues:
    """Rows that use a filter (int64 indices) and the parameter of each."""

    rows: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Filters:
    """The rows of each filter; None if no row uses it. `max_top_k` is the largest top_k."""

    min_p: RowValues | None = None
    top_k: RowValues | None = None
    max_top_k: int = 0
    top_p: RowValues | None = None


def draw_tokens(logits: Tensor, temperature: Tensor, uniforms: Tensor, filters: Filters) -> Tensor:
    """Draw one token per row.

    The order is min_p, top_k, then top_p over the remaining tokens, as in vLLM. A filter is a
    threshold on the probability. Tokens that tie with the least likely kept token are kept too, so
    that no sorting order decides.

    Args:
        logits: float32 [num_rows, vocab_size].
        temperature: float32 [num_rows], above 0.
        uniforms: float64 [num_rows] in [0, 1).

    Returns:
        int64 [num_rows]. A row whose tokens are all banned returns some valid token.
    """
    probs = torch.softmax(logits / temperature.unsqueeze(1), dim=-1)
    if filters.min_p is not None:
        rows, min_p = filters.min_p.rows, filters.min_p.values
        _drop_below(probs, rows, probs.amax(-1)[rows] * min_p)
    if filters.top_k is not None:
        rows, top_k = filters.top_k.rows, filters.top_k.values
        best = probs[rows].topk(filters.max_top_k).values
        _drop_below(probs, rows, best.gather(1, top_k.unsqueeze(1) - 1).squeeze(1))
    if filters.top_p is not None:
        rows, top_p = filters.top_p.rows, filters.top_p.values
        _drop_below(probs, rows, _nucleus_threshold(probs[rows], top_p))
    return inverse_cdf(probs, uniforms)


def inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The first token of each row, in vocabulary order, whose cumulative weight exceeds its share.

    It searches groups of tokens, then the tokens of one group: a cumulative sum of whole rows in
    float64 takes ten times as long.

    Args:
        weights: float32 [num_rows, vocab_size], not negative, of any sum.
        uniforms: float64 [num_rows] in [0, 1): the share of the sum.

    Returns:
        int64 [num_rows]; tokens of weight 0 are never chosen.
    """
    vocab_size = weights.shape[1]
    grouped_size = vocab_size // _GROUP_SIZE * _GROUP_SIZE
    groups = weights[:, :grouped_size].unflatten(1, (-1, _GROUP_SIZE)).sum(-1)
    rest = weights[:, grouped_size:].sum(-1, keepdim=True)
    group_cdf = torch.cat((groups, rest), dim=1).cumsum(-1, dtype=torch.float64)

    share = (uniforms * group_cdf[:, -1]).unsqueeze(1)
    group = _first_above(group_cdf, share)
    below = torch.where(group > 0, group_cdf.gather(1, (group - 1).clamp_(min=0)), 0.0)

    offsets = torch.arange(_GROUP_SIZE, device=weights.device)
    members = group * _GROUP_SIZE + offsets
    member_weights = weights.gather(1, members.clamp(max=vocab_size - 1))
    member_weights = torch.where(members < vocab_size, member_weights, 0.0)
    chosen = _first_above(member_weights.cumsum(-1, dtype=torch.float64), share - below)
    # The group's sum was rounded to float32, so the share may lie just past its last token.
    last = torch.where(member_weights > 0, offsets, 0).amax(-1, keepdim=True)
    # If no token has weight, the group found may be the padding after the vocabulary.
    return (group * _GROUP_SIZE + chosen.minimum(last)).clamp_(max=vocab_size - 1).squeeze(1)


def _first_above(cdf: Tensor, share: Tensor) -> Tensor:
    """int64 [num_rows, 1], the first column whose value exceeds the row's share."""
    return torch.searchsorted(cdf, share, right=True).clamp_(max=cdf.shape[1] - 1)


def _drop_below(probs: Tensor, rows: Tensor, thresholds: Tensor) -> None:
    if rows.numel() == probs.shape[0]:
        probs.masked_fill_(probs < thresholds.unsqueeze(1), 0.0)
        return
    chosen = probs[rows]
    probs[rows] = chosen.masked_fill_(chosen < thresholds.unsqueeze(1), 0.0)


def _nucleus_threshold(probs: Tensor, top_p: Tensor) -> Tensor:
    """The probability of the last token of each row's nucleus (Holtzman et al., 2020, section 3.1):
    the smallest set of most likely tokens that holds `top_p` of the row's sum."""
    target = probs.sum(-1, dtype=torch.float64) * top_p
    return _threshold_to_reach(target, probs, _NUCLEUS_CANDIDATES)


def _threshold_to_reach(target: Tensor, probs: Tensor, num_candidates: int) -> Tensor:
    """Search the most likely candidates; rows that need more are searched again with more."""
    num_candidates = min(num_candidates, probs.shape[1])
    ranked = probs.topk(num_candidates).values
    is_short = ranked.cumsum(-1, dtype=torch.float64) < target.unsqueeze(1)
    last = is_short.sum(-1, keepdim=True).clamp_(max=num_candidates - 1)
    threshold = ranked.gather(1, last).squeeze(1)
    rows = is_short[:, -1].nonzero().squeeze(1)
    if rows.numel() and num_candidates < probs.shape[1]:
        threshold[rows] = _threshold_to_reach(target[rows], probs[rows], 16 * num_candidates)
    return threshold
