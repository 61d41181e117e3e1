"""The model on the CPU kernels: one call runs a whole step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from taco_kernels.cpu.kv_cache import PANEL, PagedKV, SlotCopies, append_kv, block_bytes
from taco_kernels.cpu.program import MostLikely, ProgramRunner, StateColumns
from taco_kernels.cpu.token_masks import MaskColumns
from taco_kernels.kv_format import KVFormat
from taco_kernels.library import CpuKernels
from taco_kernels.native.cache_size import last_level_cache_bytes
from taco_kernels.native.decode_rows import DecodeRows
from taco_proto.steps import IntArray
from taco_worker.backends.cpu.assembly import Assembly
from taco_worker.backends.cpu.cpu_weights import CpuWeights
from taco_worker.backends.cpu.tree_paths import SlotArray, TreePaths, cut_into_paths
from taco_worker.devices.copy_stream import EntryCopies
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.step_model import (
    ModelInput,
    check_given_inputs,
    check_kept_layers,
    check_step_states,
    describe,
    with_code_kinds,
)
from taco_worker.models.step_states import StepStates, entry_starts
from taco_worker.sampling.cpu_ops import CpuSampling
from taco_worker.sampling.ops import SamplingOps
from taco_worker.sampling.token_masks import TokenMasks

# Maximum number of paths in a step's trees beyond the first ones, and of tokens in a path: enough
# for trees of 64 nodes. The operating system allocates their spare blocks at first use.
_MAX_TREE_PATHS = 32
_MAX_PATH_TOKENS = 64


class CpuModel:
    """A `StepModel` on the CPU kernels. A token's bits depend on its own sequence alone."""

    def __init__(
        self,
        plan: ModelPlan,
        kernels: CpuKernels,
        weights: CpuWeights,
        *,
        kv_format: KVFormat,
    ) -> None:
        """`weights` must be loaded before `allocate_kv`."""
        self.plan = plan
        self.description = _describe(kernels, weights)
        self.sampling: SamplingOps = CpuSampling(kernels)
        self.max_tree_paths = _MAX_TREE_PATHS
        self.device = torch.device("cpu")
        self.hidden_dtype = torch.float32
        self.kv_layout = _kv_layout(kernels.isa, kv_format, weights.program.segments)
        self._kept_layers: tuple[int, ...] = ()
        self._kernels = kernels
        self._weights = weights
        self.kv_format = kv_format
        self._runner: ProgramRunner | None = None
        self._assembly: Assembly | None = None
        self._num_blocks = 0
        self._max_model_len = 0
        self._paths: TreePaths | None = None
        self._state_memory: Tensor | None = None

    @property
    def weight_bytes(self) -> int:
        return self._weights.nbytes

    @property
    def kept_hidden(self) -> Tensor:
        return self._ready().kept_hidden

    def keep_hidden(self, layers: tuple[int, ...]) -> None:
        check_kept_layers(layers, self.plan.num_layers)
        self._kept_layers = layers
        if self._runner is not None:
            self._runner.keep_hidden(layers)

    def kv_block_bytes(self, block_size: int) -> int:
        if block_size % PANEL:
            raise ValueError(
                f"a block size of {block_size} is not supported on a CPU: it must be a multiple of "
                f"{PANEL}"
            )
        return block_bytes(self.kv_format, block_size, self.plan.kv_entries)

    def allocate_kv(self, num_blocks: int, block_size: int, max_model_len: int) -> None:
        """As `StepModel`, with spare blocks for tree paths after the requested blocks."""
        self._num_blocks, self._max_model_len = num_blocks, max_model_len
        cache = PagedKV.allocate(
            num_blocks + _num_spares(block_size),
            self.kv_format,
            block_size,
            self.plan.kv_entries,
        )
        self._weights.note_cache_size(last_level_cache_bytes())
        self._assembly = Assembly(self.plan, self._weights, max_model_len)
        self._runner = self._assembly.runner(self._kernels, cache)
        self._runner.keep_hidden(self._kept_layers)
        if self._state_memory is not None:
            self._runner.set_states(self._state_memory)

    def allocate_states(self, num_rows: int) -> None:
        size = entry_starts(self.plan.states)[-1]
        self._state_memory = torch.empty((num_rows, size), dtype=torch.float32)
        if self._runner is not None:
            self._runner.set_states(self._state_memory)

    @property
    def kv_rows(self) -> Tensor:
        return self._ready().cache.memory[: self._num_blocks]

    def set_pending_copies(self, pending_copies: EntryCopies) -> None:
        pending_copies.wait()

    def forward(self, inputs: ModelInput) -> Tensor:
        return self._forward(inputs, None)

    def forward_most_likely(
        self, inputs: ModelInput, *, gives_logprobs: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        found = MostLikely.of(inputs.output_rows.size, gives_logprobs=gives_logprobs)
        self._forward(inputs, found)
        return found.token_ids, found.logprobs

    def decoding(self, rows: DecodeRows) -> Callable[[], None]:
        return self._ready().decoding(rows).run

    def _forward(self, inputs: ModelInput, most_likely: MostLikely | None) -> Tensor:
        runner = self._ready()
        check_given_inputs(self, inputs, self._max_model_len)
        check_step_states(inputs, has_memory=self._state_memory is not None)
        query_start, seq_lens = inputs.query_start, inputs.seq_lens
        block_tables, copies = inputs.block_tables, None
        if inputs.parents is not None:
            block_size = runner.cache.block_size
            paths = cut_into_paths(inputs, block_size, self._num_blocks, _num_spares(block_size))
            query_start, seq_lens = paths.query_start, paths.seq_lens
            block_tables, copies = paths.block_tables, SlotCopies(paths.sources, paths.targets)
            # Zero what a path does not write in its blocks, so that sums stay clean. NumPy does it
            # on this thread: torch's threads, once woken, would occupy cores for milliseconds.
            spares = runner.cache.memory[self._num_blocks :][: paths.num_spares]
            spares.numpy().fill(0)
            self._paths = paths
        given, states = inputs.embeddings, inputs.states
        return runner.forward(
            inputs.token_ids.numpy(),
            inputs.positions,
            query_start,
            seq_lens,
            block_tables,
            inputs.output_rows,
            copies,
            rope_positions=inputs.rope_positions,
            embedding_rows=None if given is None else given.rows_by_token(inputs.positions.size),
            embeddings=None if given is None else given.values,
            columns=inputs.columns,
            adapter_ids=inputs.adapter_ids,
            states=None if states is None else _state_columns(states),
            most_likely=most_likely,
        )

    def keep_accepted(self, inputs: ModelInput, accepted: IntArray) -> None:
        assert self._paths is not None
        sources = self._paths.kv_slots[accepted]
        targets = inputs.kv_slot_mapping(self._ready().cache.block_size)[accepted]
        moved = sources != targets
        if moved.any():
            self.append_kv(sources[moved], targets[moved])

    def append_kv(self, sources: SlotArray, targets: SlotArray) -> None:
        append_kv(self._kernels, self._ready().cache, SlotCopies(sources, targets))

    def compute_logits(self, hidden: Tensor, masks: TokenMasks | None = None) -> Tensor:
        return self._ready().compute_logits(hidden, _columns(masks, hidden.shape[0]))

    def most_likely(self, hidden: Tensor, masks: TokenMasks | None = None) -> Tensor:
        return self._ready().most_likely(hidden, _columns(masks, hidden.shape[0]))

    def most_likely_logprobs(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self._ready().most_likely_logprobs(hidden)

    def embed(self, token_ids: Tensor) -> Tensor:
        return self._weights.embed(token_ids)

    def lower(self, plan: ModelPlan) -> tuple[CpuWeights, CpuModel]:
        kernels = self._kernels
        weights = CpuWeights(plan, kernels, dtype=self._weights.dtype, quantization=None)
        return weights, CpuModel(plan, kernels, weights, kv_format=KVFormat(self.hidden_dtype))

    @property
    def num_graphs(self) -> int:
        return 0

    def tune(self, *, between_steps: bool) -> bool:
        return False

    def _ready(self) -> ProgramRunner:
        if self._runner is None:
            raise RuntimeError("the KV cache has not been allocated")
        return self._runner


def _state_columns(states: StepStates) -> StateColumns:
    return StateColumns(states.rows, states.sources, states.saved_tokens, states.saved_rows)


def _columns(masks: TokenMasks | None, num_rows: int) -> MaskColumns | None:
    return None if masks is None else MaskColumns.of(masks.rows, masks.bits, num_rows)


def _describe(kernels: CpuKernels, weights: CpuWeights) -> str:
    kinds = {one.layout.kind for rows in weights.codes.values() for one in rows if one.layout}
    # Products multiply no embeddings, except for those that an LM head shares.
    multiplied = (weights.codes.keys() - weights.table_names) or weights.codes.keys()
    is_int8 = {name in weights.int8_activations for name in multiplied}
    return with_code_kinds(
        describe(kernels.isa, kernels.num_threads, weights.matrix_dtype),
        kinds,
        {torch.int8 if one else torch.bfloat16 for one in is_int8},
    )


def _kv_layout(isa: str, kv_format: KVFormat, segments: Mapping[str, int]) -> str:
    # Segments of k change the bits of keys and values, so that KV of another number is not reused.
    sums = f", sums of {max(segments.values())} segments" if segments else ""
    return f"cpu kernels, {isa}, {kv_format.description}{sums}"


def _num_spares(block_size: int) -> int:
    """The most blocks that a path of n tokens touches, wherever in a block it begins."""
    return _MAX_TREE_PATHS * (1 + -(-(_MAX_PATH_TOKENS - 1) // block_size))
