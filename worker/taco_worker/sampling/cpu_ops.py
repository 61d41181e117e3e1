"""Sampling operations of the CPU kernels."""

import torch
from torch import Tensor

from taco_kernels.cpu import sampling
from taco_kernels.cpu.token_masks import MaskColumns
from taco_kernels.library import CpuKernels
from taco_worker.sampling.ops import Penalties, SamplingMetadata
from taco_worker.sampling.slot_params import Array
from taco_worker.sampling.token_masks import TokenMasks


class CpuSampling:
    """`SamplingOps` for logits in host memory, of one vocabulary."""

    def __init__(self, kernels: CpuKernels) -> None:
        self._kernels = kernels
        self._penalty_scratch: Tensor | None = None

    def sample(self, logits: Tensor, metadata: SamplingMetadata) -> Tensor:
        return sampling.sample_tokens(self._kernels, logits, metadata)

    def penalize(self, logits: Tensor, tokens: Tensor, penalties: Penalties) -> None:
        if self._penalty_scratch is None:
            self._penalty_scratch = sampling.penalty_scratch(self._kernels, logits.shape[1])
        sampling.penalize(self._kernels, logits, tokens, penalties, self._penalty_scratch)

    def mask(self, logits: Tensor, masks: TokenMasks) -> None:
        columns = MaskColumns.of(masks.rows, masks.bits, logits.shape[0])
        sampling.mask_logits(self._kernels, logits, columns)

    def gather_logprobs(
        self, logits: Tensor, token_ids: Tensor, num_top: Array
    ) -> tuple[Tensor, Tensor, Tensor]:
        found = sampling.gather_logprobs(self._kernels, logits, token_ids.numpy(), num_top)
        ids, values, ranks = (torch.from_numpy(column) for column in found)
        return ids, values, ranks
