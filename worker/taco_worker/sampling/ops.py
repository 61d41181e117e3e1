"""The operations that a sampler stands on, wherever logits lie."""

from typing import Protocol

from torch import Tensor

from taco_kernels.sampling_columns import Choice, Penalties
from taco_worker.sampling.columns import Array

__all__ = ["Choice", "Penalties", "SamplingOps"]


class SamplingOps(Protocol):
    """Each row's result depends on that row alone. logits: float32 [num_rows, vocab_size]."""

    def choose(self, logits: Tensor, choice: Choice) -> Tensor:
        """One token a row, int64 [num_rows]; NO_CHOICE where the greatest logit is not finite."""
        ...

    def penalize(self, logits: Tensor, tokens: Tensor, penalties: Penalties) -> None:
        """Change logits in place: repetition, then presence and frequency, then n-grams.

        Args:
            tokens: int32 [any, max_len], tokens of sequences; what lies outside a sequence's range
                is ignored.
        """
        ...

    def gather_logprobs(
        self, logits: Tensor, token_ids: Tensor, num_top: Array
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log probabilities of a token of each row, and of the most likely ones.

        Args:
            token_ids: int64 [num_rows].
            num_top: int32 [num_rows], at most vocab_size.

        Returns:
            ids (int64) and log probabilities (float32), both [num_rows, 1 + the largest num_top]:
            the row's token, then the most likely ones, best first; what lies behind num_top means
            nothing. ranks (int64 [num_rows]) of the tokens, from 1. All on the logits' device.
        """
        ...
