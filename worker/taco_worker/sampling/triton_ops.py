"""Sampling operations as Triton kernels; the host does not wait for the device."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from taco_kernels.sampling_metadata import Penalties, SamplingMetadata
from taco_kernels.triton.logprobs import gather_logprobs
from taco_kernels.triton.mask import mask_logits
from taco_kernels.triton.penalize import PenaltyColumns, penalize, penalty_scratch
from taco_kernels.triton.sample import DeviceSamplingMetadata, most_likely_tokens, sample_tokens
from taco_worker.devices.transfers import Transfers
from taco_worker.sampling.slot_params import Array
from taco_worker.sampling.token_masks import TokenMasks


class TritonSampling:
    """`SamplingOps` for logits on a GPU. All columns of a call are uploaded in one copy."""

    def __init__(self, transfers: Transfers) -> None:
        self._transfers = transfers
        self._scratch: Tensor | None = None

    def sample(self, logits: Tensor, metadata: SamplingMetadata) -> Tensor:
        is_random = metadata.temperature != 0
        if not is_random.any():
            return most_likely_tokens(logits)
        has_filter = (metadata.min_p > 0) | (metadata.top_k > 0) | (metadata.top_p < 1)
        columns = self._transfers.upload(
            *(getattr(metadata, name) for name in DeviceSamplingMetadata._fields)
        )
        has_filters = bool((is_random & has_filter).any())
        return sample_tokens(logits, DeviceSamplingMetadata(*columns), has_filters=has_filters)

    def penalize(self, logits: Tensor, tokens: Tensor, penalties: Penalties) -> None:
        if self._scratch is None:
            self._scratch = penalty_scratch(logits.shape[1], tokens.shape[0], logits.device)
        columns = self._transfers.upload(
            *(getattr(penalties, name) for name in PenaltyColumns._fields)
        )
        penalize(logits, tokens, PenaltyColumns(*columns), self._scratch)

    def mask(self, logits: Tensor, masks: TokenMasks) -> None:
        mask_logits(logits, *self._transfers.upload(masks.rows, masks.bits))

    def gather_logprobs(
        self, logits: Tensor, token_ids: Tensor, num_top: Array
    ) -> tuple[Tensor, Tensor, Tensor]:
        return gather_logprobs(logits, token_ids, int(np.max(num_top, initial=0)))
