"""The decoder on torch's own operations: the reference, and what serves without CPU kernels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from taco_worker.attention.metadata import AttentionMetadata
from taco_worker.kv_memory import KVCache, bytes_per_block
from taco_worker.models.decoder import Decoder
from taco_worker.models.step_model import ModelInput, describe
from taco_worker.sampling.ops import SamplingOps
from taco_worker.sampling.torch_ops import TorchSampling


class TorchModel:
    """A `StepModel` of torch modules."""

    def __init__(self, decoder: Decoder) -> None:
        self.config = decoder.config
        self.weight_bytes = sum(parameter.nbytes for parameter in decoder.parameters())
        self.description = describe("torch", torch.get_num_threads(), decoder.dtype)
        self.sampling: SamplingOps = TorchSampling()
        self.decoder = decoder
        self._kv_cache: KVCache | None = None

    def kv_block_bytes(self, block_size: int) -> int:
        return bytes_per_block(self.config, block_size, self.decoder.dtype)

    def allocate_kv(self, num_blocks: int, block_size: int, max_model_len: int) -> None:
        self._kv_cache = KVCache(
            self.config.num_layers,
            num_blocks,
            block_size,
            self.config.num_kv_heads,
            self.config.head_dim,
            self.decoder.dtype,
            self.decoder.device,
        )

    def forward(self, inputs: ModelInput) -> Tensor:
        if self._kv_cache is None:
            raise RuntimeError("the KV cache has not been allocated")
        hidden = self.decoder(
            self._upload(inputs.token_ids),
            self._upload(inputs.positions),
            self._kv_cache,
            self._metadata(inputs, self._kv_cache.block_size),
        )
        if inputs.output_rows.size == hidden.shape[0]:
            return hidden
        return hidden[self._upload(inputs.output_rows)]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self.decoder.compute_logits(hidden)

    def most_likely(self, hidden: Tensor) -> Tensor:
        return self.compute_logits(hidden).argmax(-1)

    def _metadata(self, inputs: ModelInput, block_size: int) -> AttentionMetadata:
        query_lens = np.diff(inputs.query_start)
        rows = np.repeat(np.arange(query_lens.size), query_lens)
        blocks = inputs.block_tables[rows, inputs.positions // block_size].astype(np.int64)
        return AttentionMetadata(
            query_start_loc=self._upload(inputs.query_start),
            seq_lens=self._upload(inputs.seq_lens),
            block_tables=self._upload(inputs.block_tables),
            kv_slot_mapping=self._upload(blocks * block_size + inputs.positions % block_size),
            query_lens_host=query_lens.tolist(),
            seq_lens_host=inputs.seq_lens.tolist(),
        )

    def _upload(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.decoder.device)
