"""The sampling operations that each back end implements (CPU kernels, torch, Triton)."""

from typing import Protocol

from torch import Tensor

from taco_kernels.sampling_metadata import Penalties, SamplingMetadata
from taco_worker.sampling.slot_params import Array
from taco_worker.sampling.token_masks import TokenMasks

__all__ = ["Penalties", "SamplingMetadata", "SamplingOps"]


class SamplingOps(Protocol):
    """Each row's result depends on that row alone. logits: float32 [num_rows, vocab_size]."""

    def sample(self, logits: Tensor, metadata: SamplingMetadata) -> Tensor:
        """One token per row, int64 [num_rows]; NO_TOKEN if the greatest logit is not finite."""
        ...

    def penalize(self, logits: Tensor, tokens: Tensor, penalties: Penalties) -> None:
        """Penalize logits in place: repetition, then presence and frequency, then n-grams.

        Args:
            tokens: int32 [any, max_len], tokens of sequences; entries outside a sequence's range
                are ignored.
        """
        ...

    def mask(self, logits: Tensor, masks: TokenMasks) -> None:
        """Set the logits of tokens that a row's mask does not allow to -inf, in place."""
        ...

    def gather_logprobs(
        self, logits: Tensor, token_ids: Tensor, num_top: Array
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log probabilities of one token per row and of the top tokens.

        Args:
            token_ids: int64 [num_rows].
            num_top: int32 [num_rows], at most vocab_size.

        Returns:
            ids (int64) and log probabilities (float32), both [num_rows, 1 + the largest num_top]:
            the row's token, then the top tokens, best first; entries past num_top are undefined.
            ranks (int64 [num_rows]) of the tokens, from 1. All on the logits' device.
        """
        ...
