"""Logit changes in torch: bias, penalties, banned and allowed tokens, repeated n-grams.

Each function changes the given rows of `logits` [num_rows, vocab_size] in place. `tokens`
[num_chosen_rows, max_len] holds the tokens of the chosen rows' sequences; entries outside a row's
range are ignored.
"""

import math

import torch
from torch import Tensor


def add_logit_bias(logits: Tensor, rows: Tensor, token_ids: Tensor, values: Tensor) -> None:
    """Add values[i] to logits[rows[i], token_ids[i]]; no pair occurs twice."""
    logits[rows, token_ids] += values


def apply_repetition_penalty(
    logits: Tensor, rows: Tensor, tokens: Tensor, lengths: Tensor, penalty: Tensor
) -> None:
    """Divide positive and multiply negative logits of every token of the prompt or the output.

    Keskar et al., "CTRL" (2019), section 4.1, with the later correction for negative logits.

    Args:
        lengths: tokens of each sequence; at least one.
        penalty: [num_chosen_rows].
    """
    # Padding repeats the first token, which gets the same value again.
    tokens = torch.where(_before(tokens, lengths), tokens, tokens[:, :1])
    index = (rows.unsqueeze(1), tokens)
    seen, penalty = logits[index], penalty.unsqueeze(1)
    logits[index] = torch.where(seen > 0, seen / penalty, seen * penalty)


def apply_count_penalties(
    logits: Tensor,
    rows: Tensor,
    tokens: Tensor,
    starts: Tensor,
    lengths: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """For every token of the output subtract `frequency` per occurrence, and `presence` once.

    Args:
        starts: where each sequence's output begins.
        lengths: where it ends.
        presence, frequency: [num_chosen_rows].
    """
    is_output = _before(tokens, lengths) & ~_before(tokens, starts)
    # Positions outside the output become token 0 with a count of 0.
    tokens = torch.where(is_output, tokens, 0)
    totals = torch.zeros(tokens.shape[0], logits.shape[1], device=logits.device)
    counts = totals.scatter_add_(1, tokens, is_output.float()).gather(1, tokens)
    penalty = frequency.unsqueeze(1) * counts + presence.unsqueeze(1) * (counts > 0)
    index = (rows.unsqueeze(1), tokens)
    logits[index] = logits[index] - penalty


def ban_tokens(logits: Tensor, rows: Tensor, token_ids: Tensor) -> None:
    """Ban token_ids[i] in row rows[i]."""
    logits[rows, token_ids] = -math.inf


def allow_tokens(
    logits: Tensor, chosen: Tensor, places: Tensor, rows: Tensor, token_ids: Tensor
) -> None:
    """In the rows `chosen`, ban all tokens except token_ids[i] for row rows[i].

    If earlier changes banned all allowed tokens, these become equally likely.

    Args:
        chosen: int64, ascending.
        places: int64, the index of rows[i] in `chosen`.
    """
    allowed = logits[rows, token_ids]
    best = torch.full(chosen.shape, -math.inf, device=logits.device)
    best.scatter_reduce_(0, places, allowed, reduce="amax")
    logits[chosen] = -math.inf
    logits[rows, token_ids] = torch.where(best[places] == -math.inf, 0.0, allowed)


def ban_repeated_ngrams(
    logits: Tensor, rows: Tensor, tokens: Tensor, lengths: Tensor, sizes: Tensor
) -> None:
    """Ban every token that would complete an n-gram that the sequence already contains.

    It compares the sequence's last n - 1 tokens with every earlier place, from the last token
    backwards; few places remain after the first comparison.

    Args:
        sizes: n of each row, at least 1.
    """
    # A place is (row, position of the token that would be banned).
    places = _before(tokens, lengths).nonzero()
    row, position = places[:, 0], places[:, 1]
    back = 1
    while row.numel():
        done = sizes[row] <= back
        ban_tokens(logits, rows[row[done]], tokens[row[done], position[done]])
        alive = ~done & (position >= back)
        row, position = row[alive], position[alive]
        same = tokens[row, position - back] == tokens[row, lengths[row] - back]
        row, position = row[same], position[same]
        back += 1


def _before(tokens: Tensor, ends: Tensor) -> Tensor:
    """[num_chosen_rows, max_len], true at positions before each row's end."""
    return torch.arange(tokens.shape[1], device=tokens.device) < ends.unsqueeze(1)
