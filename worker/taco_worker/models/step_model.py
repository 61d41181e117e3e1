"""The interface between the model runner and a model, on any back end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from taco_proto.steps import IntArray
from taco_worker.devices.copy_stream import LayerCopies
from taco_worker.models.dtypes import dtype_name
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.sampling.ops import SamplingOps


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
    """

    token_ids: Tensor
    positions: IntArray
    query_start: IntArray
    seq_lens: IntArray
    block_tables: IntArray
    output_rows: IntArray
    parents: IntArray | None = None

    def kv_slot_mapping(self, block_size: int) -> IntArray:
        """int64 [num_tokens], block * block_size + offset of each token's position: the place of
        its KV. For a tree it is the place after the token's acceptance."""
        return self._slots_of(self.positions, block_size)

    def step_slot_mapping(self, block_size: int) -> IntArray:
        """The same, with a tree's KV in the order of its tokens: the layout of masked attention
        until the step's drafts are accepted."""
        if self.parents is None:
            return self.kv_slot_mapping(block_size)
        behind = np.repeat(self.seq_lens - self.query_start[1:], np.diff(self.query_start))
        return self._slots_of(behind + np.arange(behind.size, dtype=np.int32), block_size)

    def _slots_of(self, places: IntArray, block_size: int) -> IntArray:
        """`places`: for each token a place in its sequence."""
        query_lens = np.diff(self.query_start)
        rows = np.repeat(np.arange(query_lens.size), query_lens)
        blocks = self.block_tables[rows, places // block_size].astype(np.int64)
        slots: IntArray = blocks * block_size + places % block_size
        return slots


# [num_rows, in] to [num_rows, out], in the dtype of the model's hidden states.
Linear = Callable[[Tensor], Tensor]


class StepModel(Protocol):
    """A decoder with its weights and its paged KV cache.

    Attributes:
        plan: the model's declaration.
        weight_bytes: memory of the weights.
        description: device, threads and dtype for the log, such as "amx, 2 threads, bfloat16".
        sampling: the sampling operations for its logits.
        max_tree_paths: paths that all trees of a step may have together, beyond the first path of
            each; 0: the model runs chains only.
        device, hidden_dtype: of the hidden states that it returns.
        kv_layout: names the format of a block's bytes; a model with another name cannot use them.
    """

    plan: ModelPlan
    weight_bytes: int
    description: str
    sampling: SamplingOps
    max_tree_paths: int
    device: torch.device
    hidden_dtype: torch.dtype
    kv_layout: str

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

    @property
    def kv_rows(self) -> Tensor:
        """The allocated blocks: uint8 [num_blocks, bytes of a block], a view. A row holds layer
        after layer, all of one size."""
        ...

    def set_pending_copies(self, pending_copies: LayerCopies) -> None:
        """Register running copies to KV blocks: each layer waits for its copies before it reads or
        writes KV."""
        ...

    def forward(self, inputs: ModelInput) -> Tensor:
        """Run one step and store its keys and values.

        Returns:
            Hidden states after the final norm, [number of output_rows, hidden_size].
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

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[num_rows, hidden_size] to float32 [num_rows, vocab_size]; the caller may change it."""
        ...

    def most_likely(self, hidden: Tensor) -> Tensor:
        """[num_rows, hidden_size] to int64 [num_rows], as `compute_logits(hidden).argmax(-1)`.

        NO_TOKEN if the greatest logit is not finite.
        """
        ...

    def most_likely_logprobs(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """`most_likely` and the log probability of each of these tokens: float32 [num_rows].

        The values are bit-identical to `sampling.gather_logprobs`; undefined for NO_TOKEN.
        """
        ...

    def embed(self, token_ids: Tensor) -> Tensor:
        """Integers [num_rows] to [num_rows, embedding_size], in the hidden states' dtype."""
        ...

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """Make a function x W^T + b for a drafter, computed as the model's own products.

        Args:
            weight, bias: floating, [out, in] and [out]; they are copied.
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


def check_kept_layers(layers: tuple[int, ...], num_layers: int) -> None:
    """Raises ValueError as `StepModel.keep_hidden` does."""
    if unknown := [layer for layer in layers if not 0 <= layer < num_layers - 1]:
        raise ValueError(
            f"hidden states of layer {unknown[0]} cannot be kept: there are {num_layers} layers, "
            "and the last one's are the final norm's"
        )


def describe(what: str, num_threads: int, dtype: torch.dtype) -> str:
    """Format a model's `description`."""
    return f"{what}, {num_threads} thread{'s' if num_threads > 1 else ''}, {dtype_name(dtype)}"
