"""What a model runner needs of a model, whatever runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from taco_proto.steps import IntArray
from taco_worker.devices.copy_stream import LayerCopies
from taco_worker.models.decoder_config import DecoderConfig
from taco_worker.models.dtypes import dtype_name
from taco_worker.sampling.ops import SamplingOps


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One step's tokens, sequence after sequence, and where their KV lies; int32.

    All but the tokens are known on the host before the device has done the step before.

    Attributes:
        token_ids: [num_tokens], on the model's device.
        positions: [num_tokens].
        query_start: [num_seqs + 1], first token of each sequence in the step.
        seq_lens: [num_seqs], tokens in the KV after the step (context and query).
        block_tables: [num_seqs, max_blocks]; entries past a sequence's end are not read.
        output_rows: the tokens whose hidden states are wanted, in rising order. A model may skip
            whatever only the others need.
        parents: [num_tokens], where sequences hold trees of draft tokens: the token of the step
            that each one follows, -1 for the first of a sequence. A sequence's tokens stand depth
            first: the first child of a token stands right behind it. `positions` are true ones (a
            parent's and one), and `seq_lens` counts all nodes. None: every token follows the one
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
        """int64 [num_tokens], block * block_size + offset of each token's position: where its KV
        lies, and in trees where it is to lie once the token has been accepted."""
        return self._slots_of(self.positions, block_size)

    def step_slot_mapping(self, block_size: int) -> IntArray:
        """The same where a tree's KV lies in the order of its tokens, as attention that masks has
        it until the step's drafts are accepted."""
        if self.parents is None:
            return self.kv_slot_mapping(block_size)
        behind = np.repeat(self.seq_lens - self.query_start[1:], np.diff(self.query_start))
        return self._slots_of(behind + np.arange(behind.size, dtype=np.int32), block_size)

    def _slots_of(self, places: IntArray, block_size: int) -> IntArray:
        """Of one place in its sequence for each token."""
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
        config: the decoder's options.
        weight_bytes: memory that the weights take.
        description: how it runs, for the start line, such as "amx, 2 threads, bfloat16".
        sampling: what chooses tokens from its logits.
        max_tree_paths: paths that all trees of a step together may have beside the first one of
            each; 0: it runs chains only.
        device, hidden_dtype: of the hidden states that it gives.
        kv_layout: says how a block's bytes came about and what they mean; they are of no use to a
            model whose layout has another name.
    """

    config: DecoderConfig
    weight_bytes: int
    description: str
    sampling: SamplingOps
    max_tree_paths: int
    device: torch.device
    hidden_dtype: torch.dtype
    kv_layout: str

    @property
    def kept_hidden(self) -> Tensor:
        """Outputs of the layers of `keep_hidden` for all tokens of the last step, side by side:
        [num_tokens, number of layers * hidden_size]. The next step may overwrite them."""
        ...

    def keep_hidden(self, layers: tuple[int, ...]) -> None:
        """From now on each step leaves the outputs of these layers in `kept_hidden`: the residual
        stream behind them. It comes before the first step.

        Raises:
            ValueError: there is no such layer, or it is the last one, whose output after the final
                norm is what `forward` gives.
        """
        ...

    def kv_block_bytes(self, block_size: int) -> int:
        """Size of one block's keys and values in all layers.

        Raises:
            ValueError: the model cannot work with blocks of that size.
        """
        ...

    def allocate_kv(self, num_blocks: int, block_size: int, max_model_len: int) -> None:
        """Make the KV cache, in place of an earlier one."""
        ...

    @property
    def kv_rows(self) -> Tensor:
        """The blocks that `allocate_kv` has made: uint8 [num_blocks, bytes of a block], a view. A
        row is layer after layer, all of them of one size."""
        ...

    def set_pending_copies(self, pending_copies: LayerCopies) -> None:
        """Blocks are still being written to: until they have arrived, let what reads or writes a
        layer's KV come behind them."""
        ...

    def forward(self, inputs: ModelInput) -> Tensor:
        """Run one step and keep its keys and values.

        Returns:
            Hidden states after the final norm, [number of output_rows, hidden_size].
        """
        ...

    def keep_accepted(self, inputs: ModelInput, accepted: IntArray) -> None:
        """Move the KV of a step's accepted tokens to where their positions belong.

        To be called after `forward` and before the next one, of a step with `parents`.

        Args:
            accepted: tokens of the step: of each tree a path from its root, in order. The KV of
                other tokens of trees is lost.
        """
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[num_rows, hidden_size] to float32 [num_rows, vocab_size], which are the caller's own."""
        ...

    def most_likely(self, hidden: Tensor) -> Tensor:
        """[num_rows, hidden_size] to int64 [num_rows], as `compute_logits(hidden).argmax(-1)`.

        NO_CHOICE where the greatest logit is not finite.
        """
        ...

    def most_likely_logprobs(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """`most_likely`, and the log probability of each of these tokens: float32 [num_rows].

        Its bits are those that `sampling.gather_logprobs` gives for the logits. It has no meaning
        where there is no choice.
        """
        ...

    def embed(self, token_ids: Tensor) -> Tensor:
        """Integers [num_rows] to [num_rows, embedding_size] of the hidden states' dtype."""
        ...

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """x W^T + b for what computes on hidden states beside the model, as the model does it.

        Args:
            weight, bias: floating, [out, in] and [out]; they are copied.
        """
        ...

    @property
    def num_graphs(self) -> int:
        """CUDA graphs that were captured."""
        ...

    def tune(self, *, between_steps: bool) -> bool:
        """Prepare one thing more that makes later steps faster, such as a CUDA graph.

        Args:
            between_steps: only what the steps that come just now would gain by.

        Returns:
            Whether there was something left to do.
        """
        ...


def check_kept_layers(layers: tuple[int, ...], num_layers: int) -> None:
    """Raises ValueError as `StepModel.keep_hidden` does."""
    if unknown := [layer for layer in layers if not 0 <= layer < num_layers - 1]:
        raise ValueError(
            f"hidden states of layer {unknown[0]} cannot be kept: the model has {num_layers}, and "
            "of the last one only the final norm's are"
        )


def describe(what: str, num_threads: int, dtype: torch.dtype) -> str:
    """A model's `description`."""
    return f"{what}, {num_threads} thread{'s' if num_threads > 1 else ''}, {dtype_name(dtype)}"
