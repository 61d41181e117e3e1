"""CUDA graphs of decode steps and of short verification steps.

Such a step is some hundred launches, which cost the host more than the device. A graph is captured
for a number of sequences and a number of tokens per sequence; smaller steps are padded. All graphs
share the input tensors, and each reads as many rows as it needs.

Graphs of models with M-RoPE always read rope positions; a step without them repeats its positions
on each axis. Graphs of models with adapters always read the ids of these. Steps with input
embeddings run eagerly: these belong to prompts, which are long.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from taco_worker.attention.metadata import AttentionMetadata
from taco_worker.attention.tree_masks import TreeMasks, tree_masks
from taco_worker.devices.transfers import Transfers
from taco_worker.layers.sequence_states import SequenceStates
from taco_worker.models.step_model import ModelInput

logger = logging.getLogger("taco.worker")

# Inputs of the forward pass at fixed addresses: token ids, positions, metadata, rope positions, the
# ids of adapters and states.
Views = tuple[
    Tensor, Tensor, AttentionMetadata, Tensor | None, Tensor | None, SequenceStates | None
]
Forward = Callable[[*Views], Tensor]
# Captures the device work of a call and returns a function that replays it.
Capture = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]

# Tokens per sequence of a graph: one, or one plus drafts. A step takes the next larger number, so
# that drafts of varying lengths share a few graphs.
_QUERY_LENS = (1, 2, 3, 5, 9, 16)
_MAX_QUERY_LEN = _QUERY_LENS[-1]
# Capture a shape after it has occurred this many times.
_TIMES_SEEN = 2
# Each graph keeps memory: the limit for graphs of more than one token per sequence.
_MAX_VERIFICATIONS = 32
# Padding tokens that cost nothing: reading the weights dominates such small steps.
_FREE_PADDING = 32


@dataclass(frozen=True, slots=True, order=True)
class GraphShape:
    """`num_seqs` sequences of at most `query_len` tokens each, with or without draft trees."""

    query_len: int
    num_seqs: int
    has_trees: bool = False

    @property
    def num_tokens(self) -> int:
        return self.query_len * self.num_seqs


class CudaGraphs:
    """The graphs of one model, captured one at a time between eager steps."""

    def __init__(
        self,
        transfers: Transfers,
        *,
        max_num_seqs: int,
        max_seq_len: int | None = None,
        capture: Capture | None = None,
    ) -> None:
        """
        Args:
            max_seq_len: steps with a longer sequence run eagerly; None: no limit.
            capture: replaces CUDA's capture; None uses it.
        """
        self._transfers = transfers
        self._max_seq_len = max_seq_len
        self._capture = capture or _CudaCapture()
        self._sizes = graph_sizes(max_num_seqs)
        self.clear()

    def clear(self) -> None:
        """Release all graphs and their memory."""
        self._inputs: _StaticInputs | None = None
        self._graphs: dict[GraphShape, CapturedStep] = {}
        self._seen: dict[GraphShape, int] = {}
        self._is_closed = False
        self._num_verifications = 0
        self._urgent: list[GraphShape] = []
        self._wanted: list[GraphShape] = []

    @property
    def num_captured(self) -> int:
        return len(self._graphs)

    def prepare(
        self,
        forward: Forward,
        *,
        block_size: int,
        max_model_len: int,
        num_rope_axes: int = 0,
        has_adapters: bool = False,
        has_states: bool = False,
    ) -> None:
        """Allocate the shared inputs; plan to capture decodes of every size, smallest first."""
        limit = min(max_model_len, self._max_seq_len or max_model_len)
        self._forward = forward
        self._inputs = _StaticInputs(
            self._transfers,
            self._sizes[-1],
            block_size=block_size,
            max_seq_len=limit,
            num_rope_axes=num_rope_axes,
            has_adapters=has_adapters,
            has_states=has_states,
        )
        self._wanted = [GraphShape(1, num_seqs) for num_seqs in reversed(self._sizes)]

    def find(self, inputs: ModelInput) -> CapturedStep | None:
        """The graph for a step; None if it is not captured yet."""
        shape = self._shape_of(inputs)
        if shape is None:
            return None
        graph = self._graphs.get(shape)
        if graph is None:
            self._note(shape)
        return graph

    def capture_next(self, *, only_urgent: bool = False) -> bool:
        """Capture the most wanted graph; returns whether one was captured.

        Args:
            only_urgent: only shapes of repeated steps; otherwise all sizes of decodes too.
        """
        queue = self._urgent if only_urgent or self._urgent else self._wanted
        if not queue or self._inputs is None:
            return False
        shape = queue.pop()
        if shape in self._graphs:
            return True
        try:
            self._graphs[shape] = CapturedStep(self._inputs, shape, self._forward, self._capture)
        except Exception:  # the eager step serves without a graph
            logger.exception(
                "capturing a CUDA graph of %d sequences failed: no more are captured, other steps "
                "run eagerly",
                shape.num_seqs,
            )
            self._urgent.clear()
            self._wanted.clear()
            self._is_closed = True
        return True

    def _shape_of(self, inputs: ModelInput) -> GraphShape | None:
        num_seqs = inputs.seq_lens.size
        if self._inputs is None or num_seqs > self._sizes[-1] or inputs.embeddings is not None:
            return None
        query_len = int(np.diff(inputs.query_start).max())
        if query_len > _MAX_QUERY_LEN or inputs.seq_lens.max() > self._inputs.max_seq_len:
            return None
        size = self._sizes[bisect_left(self._sizes, num_seqs)]
        longest = _QUERY_LENS[bisect_left(_QUERY_LENS, query_len)]
        shape = GraphShape(longest, size, has_trees=inputs.parents is not None)
        is_mostly_padding = shape.num_tokens > _FREE_PADDING + 3 * inputs.positions.size // 2
        return None if is_mostly_padding else shape

    def _note(self, shape: GraphShape) -> None:
        seen = self._seen[shape] = self._seen.get(shape, 0) + 1
        is_decode = shape.query_len == 1
        has_room = is_decode or self._num_verifications < _MAX_VERIFICATIONS
        if seen == _TIMES_SEEN and has_room and not self._is_closed:
            self._num_verifications += not is_decode
            self._urgent.append(shape)


class CapturedStep:
    """One captured step."""

    def __init__(
        self, inputs: _StaticInputs, shape: GraphShape, forward: Forward, capture: Capture
    ) -> None:
        self._inputs = inputs
        self._shape = shape
        views = inputs.views(shape)
        inputs.clear()
        self._replay = capture(lambda: forward(*views))

    def run(self, inputs: ModelInput) -> Tensor:
        """Hidden states [num_tokens, hidden_size]; the next run of any graph overwrites them."""
        self._inputs.fill(inputs, self._shape)
        return self._replay()[: inputs.positions.size]


class _StaticInputs:
    """A step's inputs at fixed addresses, large enough for the largest step."""

    def __init__(
        self,
        transfers: Transfers,
        max_num_seqs: int,
        *,
        block_size: int,
        max_seq_len: int,
        num_rope_axes: int,
        has_adapters: bool,
        has_states: bool,
    ) -> None:
        self.max_seq_len = max_seq_len
        self._num_axes = num_rope_axes
        self._transfers = transfers
        self._block_size = block_size
        num_tokens = max_num_seqs * _MAX_QUERY_LEN

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=transfers.device)

        self._token_ids = zeros(num_tokens)
        self._positions = zeros(num_tokens)
        # Axis after axis of as many tokens as the graph has.
        self._rope_positions = zeros(num_rope_axes * num_tokens)
        self._adapter_ids = zeros(num_tokens) if has_adapters else None
        self._kv_slot_mapping = zeros(num_tokens, dtype=torch.int64)
        self._tree_masks = zeros(num_tokens, dtype=torch.int64)
        self._query_start = zeros(max_num_seqs + 1)
        self._seq_lens = zeros(max_num_seqs)
        self._block_tables = zeros(max_num_seqs, -(-max_seq_len // block_size))
        # Rows, sources, saved tokens and saved rows of `StepStates`.
        self._states = [zeros(max_num_seqs) for _ in range(4)] if has_states else []

    def views(self, shape: GraphShape) -> Views:
        """The views that a graph of `shape` reads."""
        num_tokens, num_seqs = shape.num_tokens, shape.num_seqs
        tree = None
        if shape.has_trees:
            tree = TreeMasks(self._tree_masks[:num_tokens], self._positions[:num_tokens])
        metadata = AttentionMetadata(
            query_start_loc=self._query_start[: num_seqs + 1],
            seq_lens=self._seq_lens[:num_seqs],
            block_tables=self._block_tables[:num_seqs],
            kv_slot_mapping=self._kv_slot_mapping[:num_tokens],
            query_lens_host=[shape.query_len] * num_seqs,
            seq_lens_host=[self.max_seq_len] * num_seqs,
            tree=tree,
        )
        rope_positions = None
        if self._num_axes:
            flat = self._rope_positions[: self._num_axes * num_tokens]
            rope_positions = flat.view(self._num_axes, num_tokens)
        adapter_ids = None if self._adapter_ids is None else self._adapter_ids[:num_tokens]
        states = None
        if self._states:
            rows, sources, saved_tokens, saved_rows = (column[:num_seqs] for column in self._states)
            starts, lens = metadata.query_start_loc, metadata.query_lens_host
            states = SequenceStates(starts, rows, sources, saved_tokens, saved_rows, lens)
        return (
            self._token_ids[:num_tokens],
            self._positions[:num_tokens],
            metadata,
            rope_positions,
            adapter_ids,
            states,
        )

    def clear(self) -> None:
        """Set no sequence and no KV slot, for the warm-up of a graph."""
        self._kv_slot_mapping.fill_(-1)
        self._query_start.zero_()
        self._seq_lens.zero_()

    def fill(self, inputs: ModelInput, shape: GraphShape) -> None:
        num_tokens, num_seqs = inputs.positions.size, inputs.seq_lens.size
        query_start = np.full(shape.num_seqs + 1, num_tokens, dtype=np.int32)
        query_start[: num_seqs + 1] = inputs.query_start
        seq_lens = np.zeros(shape.num_seqs, dtype=np.int32)
        seq_lens[:num_seqs] = inputs.seq_lens
        positions = np.zeros(shape.num_tokens, dtype=np.int32)
        positions[:num_tokens] = inputs.positions
        rope_positions = np.zeros((self._num_axes, shape.num_tokens), dtype=np.int32)
        by_axis = inputs.positions if inputs.rope_positions is None else inputs.rope_positions
        rope_positions[:, :num_tokens] = by_axis
        kv_slot_mapping = np.full(shape.num_tokens, -1, dtype=np.int64)
        kv_slot_mapping[:num_tokens] = inputs.step_slot_mapping(self._block_size)
        masks = np.full(shape.num_tokens if shape.has_trees else 0, -1, dtype=np.int64)
        if inputs.parents is not None:
            masks[:num_tokens] = tree_masks(inputs.parents, inputs.query_start)
        adapter_ids = np.full(shape.num_tokens, -1, dtype=np.int32)
        if inputs.adapter_ids is not None:
            adapter_ids[:num_tokens] = inputs.adapter_ids
        columns = self._transfers.upload(
            query_start,
            seq_lens,
            positions,
            kv_slot_mapping,
            inputs.block_tables,
            masks,
            rope_positions.reshape(-1),
            adapter_ids,
        )
        self._query_start[: shape.num_seqs + 1] = columns[0]
        self._seq_lens[: shape.num_seqs] = columns[1]
        self._positions[: shape.num_tokens] = columns[2]
        self._kv_slot_mapping[: shape.num_tokens] = columns[3]
        self._block_tables[:num_seqs, : inputs.block_tables.shape[1]] = columns[4]
        self._tree_masks[: masks.size] = columns[5]
        self._rope_positions[: rope_positions.size] = columns[6]
        if self._adapter_ids is not None:
            self._adapter_ids[: shape.num_tokens] = columns[7]
        if (given := inputs.states) is not None:
            # Sequences of padding have no tokens, and so read and write no row.
            of_step = (given.rows, given.sources, given.saved_tokens, given.saved_rows)
            for column, values in zip(self._states, self._transfers.upload(*of_step), strict=True):
                column[:num_seqs] = values
        self._token_ids[:num_tokens] = inputs.token_ids
        self._token_ids[num_tokens : shape.num_tokens].zero_()


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Numbers of sequences with a graph: padding is below one half, and soon below 8 rows."""
    sizes = [size for size in (1, 2, 4, *range(8, max_num_seqs, 8)) if size < max_num_seqs]
    return [*sizes, max_num_seqs]


class _CudaCapture:
    """Captures graphs that share one memory pool: a graph's output is consumed before the next run.

    All captures use one stream, because libraries keep a workspace per stream forever. They avoid
    torch's context manager, which empties caches at each capture, while requests run.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        serving = torch.cuda.current_stream()
        self._stream.wait_stream(serving)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            run()  # compile and allocate outside of the capture
            # thread_local: other threads wait for events, which would invalidate the capture.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                output = run()
            except BaseException:
                with suppress(RuntimeError):  # reports only that the capture is invalid
                    graph.capture_end()
                raise
            graph.capture_end()
        serving.wait_stream(self._stream)

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay
