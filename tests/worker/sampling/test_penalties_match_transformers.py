import pytest
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from taco_worker.sampling.top_k_top_p import Filters, RowValues, draw_tokens
from taco_worker.sampling.torch_penalties import apply_repetition_penalty, ban_repeated_ngrams

ROWS, VOCAB_SIZE, LENGTH = 4, 50, 30


def tokens_and_logits() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 6, (ROWS, LENGTH), generator=generator)
    return tokens, torch.randn(ROWS, VOCAB_SIZE, generator=generator)


def test_repetition_penalty() -> None:
    tokens, logits = tokens_and_logits()
    expected = RepetitionPenaltyLogitsProcessor(1.7)(tokens, logits.clone())
    apply_repetition_penalty(
        logits, torch.arange(ROWS), tokens, torch.full((ROWS,), LENGTH), torch.full((ROWS,), 1.7)
    )
    torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("size", [1, 2, 3, 4, LENGTH + 5])
def test_no_repeat_ngrams(size: int) -> None:
    tokens, logits = tokens_and_logits()
    expected = NoRepeatNGramLogitsProcessor(size)(tokens, logits.clone())
    lengths, sizes = torch.full((ROWS,), LENGTH), torch.full((ROWS,), size)
    ban_repeated_ngrams(logits, torch.arange(ROWS), tokens, lengths, sizes)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("name", ["min_p", "top_k", "top_p"])
def test_filters_keep_the_same_tokens(name: str) -> None:
    """Each row has enough shares to draw every kept token."""
    tokens, logits = tokens_and_logits()
    warper, value = {
        "min_p": (MinPLogitsWarper(0.2), torch.tensor(0.2)),
        "top_k": (TopKLogitsWarper(7), torch.tensor(7)),
        "top_p": (TopPLogitsWarper(0.6), torch.tensor(0.6)),
    }[name]
    num_shares = 4000
    shares = ((torch.arange(num_shares, dtype=torch.float64) + 0.5) / num_shares).repeat(ROWS)
    repeated = logits.repeat_interleave(num_shares, 0)
    everyone = torch.arange(repeated.shape[0])
    chosen_filter = RowValues(everyone, value.expand(everyone.numel()))
    filters = Filters(**{name: chosen_filter}, max_top_k=7 if name == "top_k" else 0)
    drawn = draw_tokens(repeated, torch.ones(everyone.numel()), shares, filters)
    kept = warper(tokens, logits.clone()) > -torch.inf
    for row, row_tokens in enumerate(drawn.view(ROWS, num_shares)):
        assert row_tokens.unique().tolist() == kept[row].nonzero().squeeze(1).tolist()
