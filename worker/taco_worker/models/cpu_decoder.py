"""The decoder on the CPU kernels: a whole step in one call."""

from __future__ import annotations

import torch
from torch import Tensor

from taco_kernels.cpu.attention import PANEL, PagedKV, block_bytes
from taco_kernels.cpu.decoder import CpuDecoder
from taco_kernels.cpu.library import CpuKernels
from taco_proto.steps import IntArray
from taco_worker.models.cpu_weights import CpuWeights
from taco_worker.models.decoder_config import DecoderConfig
from taco_worker.models.step_model import ModelInput, describe
from taco_worker.sampling.cpu_ops import CpuSampling
from taco_worker.sampling.ops import SamplingOps


class FusedDecoder:
    """A `StepModel` of the CPU kernels. A token's bits depend on its own sequence alone."""

    def __init__(
        self,
        config: DecoderConfig,
        kernels: CpuKernels,
        weights: CpuWeights,
        *,
        kv_dtype: torch.dtype,
    ) -> None:
        """`weights` have been loaded."""
        self.config = config
        self.weight_bytes = weights.nbytes
        self.description = describe(kernels.isa, kernels.num_threads, weights.matrix_dtype)
        self.sampling: SamplingOps = CpuSampling(kernels)
        self.max_tree_paths = 0
        self._kernels = kernels
        self._weights = weights
        self._kv_dtype = kv_dtype
        self._decoder: CpuDecoder | None = None

    def kv_block_bytes(self, block_size: int) -> int:
        if block_size % PANEL:
            raise ValueError(
                f"a block size of {block_size} is not supported on a CPU: it must be a multiple of "
                f"{PANEL}"
            )
        config = self.config
        return block_bytes(
            self._kv_dtype, block_size, config.num_layers, config.num_kv_heads, config.head_dim
        )

    def allocate_kv(self, num_blocks: int, block_size: int, max_model_len: int) -> None:
        config = self.config
        cache = PagedKV.allocate(
            num_blocks,
            self._kv_dtype,
            block_size,
            config.num_layers,
            config.num_kv_heads,
            config.head_dim,
        )
        self._decoder = CpuDecoder(self._kernels, self._weights.assemble(max_model_len), cache)

    def forward(self, inputs: ModelInput) -> Tensor:
        return self._ready().forward(
            inputs.token_ids.numpy(),
            inputs.positions,
            inputs.query_start,
            inputs.seq_lens,
            inputs.block_tables,
            inputs.output_rows,
        )

    def keep_accepted(self, inputs: ModelInput, accepted: IntArray) -> None:
        raise NotImplementedError

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self._ready().compute_logits(hidden)

    def most_likely(self, hidden: Tensor) -> Tensor:
        return self._ready().most_likely(hidden)

    def tune(self, *, between_steps: bool) -> bool:
        return False

    def _ready(self) -> CpuDecoder:
        if self._decoder is None:
            raise RuntimeError("the KV cache has not been allocated")
        return self._decoder
