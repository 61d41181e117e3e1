"""The interface between the model runner and a model, on any back end."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from taco_kernels.kv_format import KVFormat
from taco_kernels.native.decode_rows import DecodeRows
from taco_proto.steps import IntArray
from taco_worker.devices.copy_stream import EntryCopies
from taco_worker.models.dtypes import dtype_name
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.step_states import StepStates
from taco_worker.models.weight_sink import WeightSink
from taco_worker.sampling.ops import SamplingOps
from taco_worker.sampling.token_masks import TokenMasks

SlotArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class InputEmbeddings:
    """Embeddings of some tokens of a step, such as the patches of an image.

    Each replaces a row that `StepModel.embed` returns. What the model computes from those rows (a
    scale, a norm, learned positions) it computes from these too. The token ids must be valid ids.
    The KV of the tokens depends on the embeddings: token ids alone must not identify it.

    Attributes:
        tokens: [num_rows], indices of the step's tokens, strictly ascending.
        values: [num_rows, embedding_size], contiguous, on the model's device, in the dtype of its
            hidden states.
    """

    tokens: IntArray
    values: Tensor

    def rows_by_token(self, num_tokens: int) -> IntArray:
        """[num_tokens], the row of `values` for each token of the step, or -1."""
        rows = np.full(num_tokens, -1, dtype=np.int32)
        rows[self.tokens] = np.arange(self.tokens.size, dtype=np.int32)
        return rows


@dataclass(frozen=True, slots=True)
class ModelInput:
    """The tokens of one step, sequence after sequence, and the places of their KV; int32.

    The host knows everything except the token ids before the device has finished the step before.

    Attributes:
        token_ids: [num_tokens], on the model's device.
        positions: [num_tokens].
        query_start: [num_seqs + 1], first token of each sequence in the step.
        seq_lens: [num_seqs], tokens in the KV after the step (context and query).
        block_tables: [num_seqs, max_blocks]; entries past a sequence's end are not read.
        output_rows: the tokens whose hidden states are needed, ascending. A model may skip work
            that only other tokens need.
        parents: [num_tokens], for sequences with draft trees: the token of the step that each
            token follows, -1 for the first of a sequence. A sequence's tokens are in depth-first
            order: a token's first child comes right after it. `positions` are the true ones
            (parent's + 1), and `seq_lens` counts all nodes. None: every token follows the one
            before it.
        embeddings: of the tokens that are not embedded by their ids.
        rope_positions: [3, num_tokens], time, height and width, which turn queries and keys of
            models with M-RoPE (Qwen2-VL, Wang et al. 2024, section 2.1). The places of KV and the
            order of tokens follow from `positions` alone. None: all three are `positions`.
        columns: [num_tokens, columns of the plan's op Input], on the model's device, in the dtype
            of its hidden states. None: the plan has no such op.
        adapter_ids: [num_tokens], the LoRA adapter of each token, negative: none; the same for all
            tokens of a sequence. None: no token has one.
        states: of the sequences' recurrent states. None: the plan has none.
    """

    token_ids: Tensor
    positions: IntArray
    query_start: IntArray
    seq_lens: IntArray
    block_tables: IntArray
    output_rows: IntArray
    parents: IntArray | None = None
    embeddings: InputEmbeddings | None = None
    rope_positions: IntArray | None = None
    columns: Tensor | None = None
    adapter_ids: IntArray | None = None
    states: StepStates | None = None

    def kv_slot_mapping(self, block_size: int) -> IntArray:
        """int64 [num_tokens], block * block_size + offset of each token's position: the place of
        its KV. For a tree it is the place after the token's acceptance."""
        return self._slots_of(self.positions, block_size)

    def step_slot_mapping(self, block_size: int) -> IntArray:
        """int64 [num_tokens], where the step writes KV: in the order of a sequence's tokens.

        For a tree that is the layout of masked attention until the step's drafts are accepted. The
        KV of a sequence need not begin with its first token.
        """
        behind = np.repeat(self.seq_lens - self.query_start[1:], np.diff(self.query_start))
        return self._slots_of(behind + np.arange(behind.size, dtype=np.int32), block_size)

    def _slots_of(self, places: IntArray, block_size: int) -> IntArray:
        """`places`: for each token a place in its sequence."""
        query_lens = np.diff(self.query_start)
        rows = np.repeat(np.arange(query_lens.size), query_lens)
        blocks = self.block_tables[rows, places // block_size].astype(np.int64)
        slots: IntArray = blocks * block_size + places % block_size
        return slots


class StepModel(Protocol):
    """A decoder with its weights and its paged KV cache.

    Attributes:
        plan: the model's declaration.
        description: device, threads and dtype for the log, such as "amx, 2 threads, bfloat16".
        sampling: the sampling operations for its logits.
        max_tree_paths: paths that all trees of a step may have together, beyond the first path of
            each; 0: the model runs chains only.
        device, hidden_dtype: of the hidden states that it returns.
        kv_format: how the KV cache stores numbers.
        kv_layout: names the format of a block's bytes; a model with another name cannot use them.
    """

    plan: ModelPlan
    description: str
    sampling: SamplingOps
    max_tree_paths: int
    device: torch.device
    hidden_dtype: torch.dtype
    kv_format: KVFormat
    kv_layout: str

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights."""
        ...

    @property
    def kept_hidden(self) -> Tensor:
        """Outputs of the `keep_hidden` layers for all tokens of the last step, side by side:
        [num_tokens, number of layers * hidden_size]. The next step may overwrite them."""
        ...

    def keep_hidden(self, layers: tuple[int, ...]) -> None:
        """Make each step store the outputs (residual stream) of these layers in `kept_hidden`.

        Call it before the first step.

        Raises:
            ValueError: the layer does not exist or is the last one, whose output after the final
                norm `forward` returns.
        """
        ...

    def kv_block_bytes(self, block_size: int) -> int:
        """Size of one block's keys and values in all layers, in bytes.

        Raises:
            ValueError: the model does not support that block size.
        """
        ...

    def allocate_kv(self, num_blocks: int, block_size: int, max_model_len: int) -> None:
        """Allocate the KV cache and free an earlier one."""
        ...

    def allocate_states(self, num_rows: int) -> None:
        """Allocate rows for the recurrent states of sequences; only if the plan has states.

        Call it before the first step and before `decoding`.
        """
        ...

    @property
    def kv_rows(self) -> Tensor:
        """The allocated blocks: uint8 [num_blocks, bytes of a block], a view. A row holds entry
        after entry."""
        ...

    def set_pending_copies(self, pending_copies: EntryCopies) -> None:
        """Register running copies to KV blocks: each layer waits for its entry's copies before it
        reads or writes KV."""
        ...

    def forward(self, inputs: ModelInput) -> Tensor:
        """Run one step and store its keys and values.

        Returns:
            Hidden states after the final norm, [number of output_rows, hidden_size].

        Raises:
            ValueError: as `check_given_inputs`.
        """
        ...

    def keep_accepted(self, inputs: ModelInput, accepted: IntArray) -> None:
        """Move the KV of a step's accepted tokens to the places of their positions.

        Call it between `forward` of a step with `parents` and the next `forward`.

        Args:
            accepted: tokens of the step: for each tree a path from its root, in order. The KV of
                the tree's other tokens is lost.
        """
        ...

    def append_kv(self, sources: SlotArray, targets: SlotArray) -> None:
        """Copy the KV of tokens to the ends of sequences, before their next tokens are computed.

        Args:
            sources, targets: int64 [num_tokens], block * block_size + offset; the targets are in
                the order of each sequence's tokens. No target is also a source.
        """
        ...

    def compute_logits(self, hidden: Tensor, masks: TokenMasks | None = None) -> Tensor:
        """[num_rows, hidden_size] to float32 [num_rows, vocab_size]; the caller may change it.

        Args:
            masks: the logits of tokens that a row's mask does not allow are -inf. A model may skip
                what only those need.
        """
        ...

    def most_likely(self, hidden: Tensor, masks: TokenMasks | None = None) -> Tensor:
        """[num_rows, hidden_size] to int64 [num_rows], the argmax of `compute_logits`.

        NO_TOKEN if the greatest logit is not finite.
        """
        ...

    def most_likely_logprobs(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """`most_likely` and the log probability of each of these tokens: float32 [num_rows].

        The values are bit-identical to `sampling.gather_logprobs`; undefined for NO_TOKEN.
        """
        ...

    def forward_most_likely(
        self, inputs: ModelInput, *, gives_logprobs: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """`forward`, then `most_likely` or `most_likely_logprobs` of what it returns.

        It may cost the host less than these two calls.
        """
        ...

    def embed(self, token_ids: Tensor) -> Tensor:
        """Integers [num_rows] to [num_rows, embedding_size], in the hidden states' dtype."""
        ...

    def lower(self, plan: ModelPlan) -> tuple[WeightSink, StepModel]:
        """Make a model of a drafter's plan, with this model's back end, device and dtype.

        Its weights must be loaded through the sink before `allocate_kv`.

        Raises:
            ValueError: the back end lacks an op of the plan.
        """
        ...

    @property
    def num_graphs(self) -> int:
        """Number of captured CUDA graphs."""
        ...

    def tune(self, *, between_steps: bool) -> bool:
        """Do one piece of preparation that makes later steps faster, such as a CUDA graph capture.

        Args:
            between_steps: prepare only what the current steps need.

        Returns:
            Whether anything was prepared.
        """
        ...


@runtime_checkable
class DecodeModel(Protocol):
    """A `StepModel` that also runs decode steps on host arrays, with less work for the host."""

    def decoding(self, rows: DecodeRows) -> Callable[[], None]:
        """A function that runs the step that `rows` has begun, and writes its most likely tokens.

        Call `allocate_kv` first. The function raises MemoryError, before anything runs, where the
        step's scratch memory cannot be allocated.
        """
        ...


def check_kept_layers(layers: tuple[int, ...], num_layers: int) -> None:
    """Raises ValueError as `StepModel.keep_hidden` does."""
    if unknown := [layer for layer in layers if not 0 <= layer < num_layers - 1]:
        raise ValueError(
            f"hidden states of layer {unknown[0]} cannot be kept: there are {num_layers} layers, "
            "and the last one's are the final norm's"
        )


def check_given_inputs(model: StepModel, inputs: ModelInput, max_model_len: int) -> None:
    """Check the embeddings and rope positions of a step, if it has any.

    Raises:
        ValueError: the model has no positions on axes, or a shape, type or value is not allowed.
    """
    num_tokens = inputs.positions.size
    if inputs.embeddings is not None:
        tokens, values = inputs.embeddings.tokens, inputs.embeddings.values
        in_order = np.concatenate(([-1], tokens.reshape(-1), [num_tokens]))
        if tokens.ndim != 1 or tokens.dtype != np.int32 or (np.diff(in_order) < 1).any():
            raise ValueError(
                f"the tokens of embeddings must be ascending int32 from 0 to {num_tokens - 1}, not "
                f"{tokens.dtype} {tokens.tolist()}"
            )
        shape = (tokens.size, model.plan.embedding_size)
        expected = (shape, model.hidden_dtype, model.device.type)
        actual = (tuple(values.shape), values.dtype, values.device.type)
        if actual != expected or not values.is_contiguous():
            raise ValueError(
                f"embeddings must be contiguous {dtype_name(model.hidden_dtype)} {list(shape)} on "
                f"{model.device.type}, not {dtype_name(values.dtype)} {list(values.shape)} with "
                f"strides {values.stride()} on {values.device.type}"
            )
    if inputs.rope_positions is None:
        return
    rope, num_axes = inputs.rope_positions, model.plan.num_rope_axes
    if not num_axes:
        raise ValueError(f"{model.plan.architecture} has no M-RoPE: rope_positions do not apply")
    if rope.shape != (num_axes, num_tokens) or rope.dtype != np.int32:
        raise ValueError(
            f"rope_positions must be int32 [{num_axes}, {num_tokens}], not {rope.dtype} "
            f"{list(rope.shape)}"
        )
    if wrong := rope[(rope < 0) | (rope >= max_model_len)].tolist():
        raise ValueError(f"rope_positions must be from 0 to {max_model_len - 1}, not {wrong[0]}")


def check_step_states(inputs: ModelInput, *, has_memory: bool) -> None:
    """Check that a step has states if the model has memory for them, and no trees then.

    Raises:
        ValueError: it has not, or it has states and the model has no memory for them.
    """
    if (inputs.states is not None) != has_memory or (has_memory and inputs.parents is not None):
        raise ValueError("a model with states runs steps with states and without trees")


def describe(what: str, num_threads: int, dtype: torch.dtype) -> str:
    """Format a model's `description`."""
    return f"{what}, {num_threads} thread{'s' if num_threads > 1 else ''}, {dtype_name(dtype)}"


def with_code_kinds(
    description: str, kinds: Set[str], activations: Set[torch.dtype] = frozenset()
) -> str:
    """Add the weights that are kept as codes to a description.

    Args:
        kinds: of codes, such as "int4"; empty: no weights are codes.
        activations: types of what is multiplied with codes; empty: unknown.
    """
    parts = [description]
    if kinds:
        parts.append(f"{'/'.join(sorted(kinds))} codes")
    if kinds and activations:
        parts.append(f"{'/'.join(sorted(map(dtype_name, activations)))} activations")
    return ", ".join(parts)
