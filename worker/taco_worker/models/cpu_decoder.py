"""The decoder on the CPU kernels: a whole step in one call."""

from __future__ import annotations

import torch
from torch import Tensor

from taco_kernels.cpu.attention import PANEL, PagedKV, block_bytes
from taco_kernels.cpu.decoder import CpuDecoder
from taco_kernels.cpu.library import CpuKernels
from taco_kernels.cpu.matmul import EncodedRows, PackedMatrix, multiply
from taco_proto.steps import IntArray
from taco_worker.models.cpu_weights import CpuWeights
from taco_worker.models.decoder_config import DecoderConfig
from taco_worker.models.step_model import Linear, ModelInput, check_kept_layers, describe
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
        self.device = torch.device("cpu")
        self.hidden_dtype = torch.float32
        self._kept_layers: tuple[int, ...] = ()
        self._kernels = kernels
        self._weights = weights
        self._kv_dtype = kv_dtype
        self._decoder: CpuDecoder | None = None

    @property
    def kept_hidden(self) -> Tensor:
        return self._ready().kept_hidden

    def keep_hidden(self, layers: tuple[int, ...]) -> None:
        check_kept_layers(layers, self.config.num_layers)
        self._kept_layers = layers

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
        self._decoder = CpuDecoder(
            self._kernels,
            self._weights.assemble(max_model_len),
            cache,
            kept_layers=self._kept_layers,
        )

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

    def embed(self, token_ids: Tensor) -> Tensor:
        return self._ready().embed(token_ids)

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        kernels, dtype = self._kernels, self._weights.dtype
        matrix = PackedMatrix.from_tensor(kernels, weight.contiguous(), dtype, bias=bias)

        def product(x: Tensor) -> Tensor:
            return multiply(kernels, EncodedRows(kernels, x.contiguous(), dtype), matrix)

        return product

    def tune(self, *, between_steps: bool) -> bool:
        return False

    def _ready(self) -> CpuDecoder:
        if self._decoder is None:
            raise RuntimeError("the KV cache has not been allocated")
        return self._decoder
