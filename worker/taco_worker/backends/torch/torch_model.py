"""The model on torch modules: for GPUs, and for CPUs without the CPU kernels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from taco_kernels.kv_format import KVFormat
from taco_proto.steps import IntArray
from taco_worker.attention.kv_cache import KVCache, bytes_per_block
from taco_worker.attention.metadata import AttentionMetadata
from taco_worker.attention.tree_masks import TreeMasks, tree_masks
from taco_worker.backends.torch.cuda_graphs import CudaGraphs
from taco_worker.backends.torch.plan_network import PlanNetwork
from taco_worker.backends.torch.plan_weights import NetworkSink
from taco_worker.devices.copy_stream import EntryCopies
from taco_worker.devices.transfers import Transfers
from taco_worker.layers.sequence_states import SequenceStates, StateMemory
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.linear import Linear
from taco_worker.models.step_model import (
    ModelInput,
    SlotArray,
    check_given_inputs,
    check_kept_layers,
    check_step_states,
)
from taco_worker.sampling.ops import SamplingMetadata, SamplingOps
from taco_worker.sampling.token_masks import TokenMasks
from taco_worker.sampling.torch_ops import most_likely

# Masked attention: as many paths as there are tokens.
_ANY = 2**31 - 1


class TorchModel:
    """A `StepModel` of torch modules."""

    def __init__(
        self,
        network: PlanNetwork,
        transfers: Transfers,
        *,
        description: str,
        sampling: SamplingOps,
        kv_format: KVFormat,
        graphs: CudaGraphs | None = None,
    ) -> None:
        """`graphs`: CUDA graphs for steps of few tokens, whose launches dominate otherwise."""
        self.plan = network.plan
        self.weight_bytes = sum(parameter.nbytes for parameter in network.parameters())
        self.description = description
        self.sampling = sampling
        self.max_tree_paths = _ANY if network.supports_trees else 0
        self.device = network.device
        self.hidden_dtype = network.dtype
        self.kv_layout = f"torch on {network.device.type}, {kv_format.description}"
        self.kept_hidden = torch.empty((0, 0), dtype=network.dtype, device=network.device)
        self.network = network
        self._transfers = transfers
        self.kv_format = kv_format
        self._graphs = graphs
        self._has_adapters = any(isinstance(op, Linear) and op.is_adapted for op in self.plan.ops)
        self._kv_cache: KVCache | None = None
        self._state_memory: StateMemory | None = None
        self._max_model_len = 0

    def keep_hidden(self, layers: tuple[int, ...]) -> None:
        check_kept_layers(layers, self.plan.num_layers)
        self.network.kept_layers = layers

    def kv_block_bytes(self, block_size: int) -> int:
        return bytes_per_block(self.plan.kv_entries, block_size, self.kv_format)

    def allocate_kv(self, num_blocks: int, block_size: int, max_model_len: int) -> None:
        self._kv_cache = None  # free the old cache before allocating the new one
        if self._graphs is not None:
            self._graphs.clear()
        self._max_model_len = max_model_len
        self.network.prepare_positions(max_model_len)
        self._kv_cache = KVCache(
            self.plan.kv_entries,
            num_blocks,
            block_size,
            self.kv_format,
            self.network.device,
        )
        if self._graphs is not None:
            self._graphs.prepare(
                self._run,
                block_size=block_size,
                max_model_len=max_model_len,
                num_rope_axes=self.plan.num_rope_axes,
                has_adapters=self._has_adapters,
                has_states=bool(self.plan.states),
            )

    def allocate_states(self, num_rows: int) -> None:
        self._state_memory = StateMemory(self.plan.states, num_rows, self.device)

    @property
    def kv_rows(self) -> Tensor:
        return self._cache().rows

    def set_pending_copies(self, pending_copies: EntryCopies) -> None:
        self._cache().pending_copies = pending_copies

    def forward(self, inputs: ModelInput) -> Tensor:
        check_given_inputs(self, inputs, self._max_model_len)
        check_step_states(inputs, has_memory=self._state_memory is not None)
        graph = None if self._graphs is None else self._graphs.find(inputs)
        if graph is not None:
            self._cache().pending_copies.wait()  # the graph was captured without waits
        hidden = self._run_eagerly(inputs) if graph is None else graph.run(inputs)
        hidden_size = self.plan.hidden_size
        self.kept_hidden, hidden = hidden[:, hidden_size:], hidden[:, :hidden_size]
        if inputs.output_rows.size == hidden.shape[0]:
            return hidden
        (rows,) = self._transfers.upload(inputs.output_rows)
        return hidden[rows]

    def keep_accepted(self, inputs: ModelInput, accepted: IntArray) -> None:
        block_size = self._cache().block_size
        sources = inputs.step_slot_mapping(block_size)[accepted]
        targets = inputs.kv_slot_mapping(block_size)[accepted]
        moved = sources != targets
        if moved.any():
            self.append_kv(sources[moved], targets[moved])

    def append_kv(self, sources: SlotArray, targets: SlotArray) -> None:
        self._cache().copy_tokens(*self._transfers.upload(sources, targets))

    def compute_logits(self, hidden: Tensor, masks: TokenMasks | None = None) -> Tensor:
        logits = self.network.compute_logits(hidden)
        if masks is not None:
            self.sampling.mask(logits, masks)
        return logits

    def most_likely(self, hidden: Tensor, masks: TokenMasks | None = None) -> Tensor:
        if masks is None:
            return most_likely(self.network.project(hidden))
        logits = self.compute_logits(hidden, masks)
        return self.sampling.sample(logits, SamplingMetadata.greedy(hidden.shape[0]))

    def most_likely_logprobs(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        logits, count = self.compute_logits(hidden), hidden.shape[0]
        token_ids = self.sampling.sample(logits, SamplingMetadata.greedy(count))
        num_top = np.zeros(count, dtype=np.int32)
        _, logprobs, _ = self.sampling.gather_logprobs(logits, token_ids.clamp(min=0), num_top)
        return token_ids, logprobs[:, 0]

    def forward_most_likely(
        self, inputs: ModelInput, *, gives_logprobs: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        hidden = self.forward(inputs)
        if gives_logprobs:
            return self.most_likely_logprobs(hidden)
        return self.most_likely(hidden), None

    def embed(self, token_ids: Tensor) -> Tensor:
        embedded: Tensor = self.network.embed(token_ids)
        return embedded

    def lower(self, plan: ModelPlan) -> tuple[NetworkSink, TorchModel]:
        network = self.network.sibling(plan)
        model = TorchModel(
            network,
            self._transfers,
            description=self.description,
            sampling=self.sampling,
            kv_format=KVFormat(self.hidden_dtype),
        )
        return NetworkSink(network), model

    @property
    def num_graphs(self) -> int:
        return 0 if self._graphs is None else self._graphs.num_captured

    def tune(self, *, between_steps: bool) -> bool:
        return self._graphs is not None and self._graphs.capture_next(only_urgent=between_steps)

    def _run_eagerly(self, inputs: ModelInput) -> Tensor:
        block_size = self._cache().block_size
        positions, query_start, seq_lens, block_tables, kv_slot_mapping = self._transfers.upload(
            inputs.positions,
            inputs.query_start,
            inputs.seq_lens,
            inputs.block_tables,
            inputs.step_slot_mapping(block_size),
        )
        rope_positions, embeddings, tree, adapter_ids, states = None, None, None, None, None
        if inputs.adapter_ids is not None:
            (adapter_ids,) = self._transfers.upload(inputs.adapter_ids)
        if (given_states := inputs.states) is not None:
            rows, sources, saved_tokens, saved_rows = self._transfers.upload(
                given_states.rows,
                given_states.sources,
                given_states.saved_tokens,
                given_states.saved_rows,
            )
            lens = np.diff(inputs.query_start).tolist()
            states = SequenceStates(query_start, rows, sources, saved_tokens, saved_rows, lens)
        if inputs.rope_positions is not None:
            (rope_positions,) = self._transfers.upload(inputs.rope_positions)
        if (given := inputs.embeddings) is not None:
            (tokens,) = self._transfers.upload(given.tokens.astype(np.int64))
            embeddings = tokens, given.values
        if inputs.parents is not None:
            (masks,) = self._transfers.upload(tree_masks(inputs.parents, inputs.query_start))
            tree = TreeMasks(masks, positions)
        metadata = AttentionMetadata(
            query_start_loc=query_start,
            seq_lens=seq_lens,
            block_tables=block_tables,
            kv_slot_mapping=kv_slot_mapping,
            query_lens_host=np.diff(inputs.query_start).tolist(),
            seq_lens_host=inputs.seq_lens.tolist(),
            tree=tree,
        )
        return self._run(
            inputs.token_ids,
            positions,
            metadata,
            rope_positions,
            adapter_ids,
            states,
            embeddings,
            inputs.columns,
        )

    def _run(
        self,
        token_ids: Tensor,
        positions: Tensor,
        metadata: AttentionMetadata,
        rope_positions: Tensor | None = None,
        adapter_ids: Tensor | None = None,
        states: SequenceStates | None = None,
        embeddings: tuple[Tensor, Tensor] | None = None,
        columns: Tensor | None = None,
    ) -> Tensor:
        hidden: Tensor = self.network(
            token_ids,
            positions,
            self._cache(),
            metadata,
            rope_positions=rope_positions,
            embeddings=embeddings,
            columns=columns,
            adapter_ids=adapter_ids,
            state_memory=self._state_memory,
            states=states,
        )
        return hidden

    def _cache(self) -> KVCache:
        if self._kv_cache is None:
            raise RuntimeError("the KV cache has not been allocated")
        return self._kv_cache
