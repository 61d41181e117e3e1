"""Runs a model's steps on the CPU kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import Array, Structure
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from taco_kernels.cpu.decode_program import DecodeProgram
from taco_kernels.cpu.kv_cache import PagedKV, SlotCopies
from taco_kernels.cpu.program_structs import (
    MAX_BUFFERS,
    OP_KINDS,
    Buffer,
    Logits,
    Op,
    Program,
    Stage,
    Step,
)
from taco_kernels.cpu.recurrence_structs import StateRows
from taco_kernels.cpu.structs import KVCopies
from taco_kernels.cpu.token_masks import NO_MASKS, MaskColumns
from taco_kernels.library import CpuKernels, keep_gil
from taco_kernels.native.decode_rows import DecodeRows
from taco_kernels.native.memory import Scratch

IntArray = npt.NDArray[np.int32]
_Struct = TypeVar("_Struct", bound=Structure)


class StateColumns(NamedTuple):
    """Rows of states, int32 [num_seqs] each, as in `taco_kernels.cpu.recurrence.SequenceRows`."""

    rows: IntArray
    sources: IntArray
    saved_tokens: IntArray
    saved_rows: IntArray


@dataclass(frozen=True, slots=True)
class MostLikely:
    """The most likely tokens of some rows, which the kernels fill in.

    Attributes:
        token_ids: int32 [num_rows]; NO_TOKEN where the greatest logit is not finite.
        logprobs: float32 [num_rows], of these tokens, undefined for NO_TOKEN; None: not wanted.
    """

    token_ids: Tensor
    logprobs: Tensor | None

    @classmethod
    def of(cls, num_rows: int, *, gives_logprobs: bool = False) -> MostLikely:
        logprobs = torch.empty(num_rows, dtype=torch.float32) if gives_logprobs else None
        return cls(torch.empty(num_rows, dtype=torch.int32), logprobs)


class ProgramRunner:
    """The forward pass and logits of one model. Not thread safe.

    Attributes:
        cache: the KV cache of its sequences.
        kept_hidden: outputs of the `keep_hidden` layers in the last step, concatenated, float32
            [num_tokens, number of layers * hidden_size].
    """

    def __init__(
        self,
        kernels: CpuKernels,
        buffers: Sequence[Buffer],
        ops: Sequence[Op],
        stages: Sequence[Stage],
        program: Program,
        cache: PagedKV,
    ) -> None:
        """The caller keeps the memory alive that `ops` and `program` point to.

        Args:
            program: with `hidden`, the matrices and the transform of the logits set.

        Raises:
            ValueError: there are more buffers than the kernels allow.
        """
        if len(buffers) > MAX_BUFFERS:
            raise ValueError(f"a program has at most {MAX_BUFFERS} buffers, not {len(buffers)}")
        self._kernels = kernels
        self._quick_lib = keep_gil(kernels.lib)
        self.cache = cache
        self._arrays = (
            _array(Buffer, buffers),
            _array(Op, ops),
            _array(Stage, stages),
        )  # own the memory that the program points to
        program.num_buffers, program.num_ops = len(buffers), len(ops)
        program.num_stages = len(stages)
        program.buffers, program.ops, program.stages = (
            ctypes.addressof(array) for array in self._arrays
        )
        self._program = program
        self._kept_layers = np.zeros(0, dtype=np.int32)
        self.kept_hidden = torch.empty((0, 0))
        self._hidden_size = buffers[program.hidden].columns
        self._vocab_size = program.lm_head.n
        self._num_columns = sum(op.out.size for op in ops if OP_KINDS[op.kind] == "input")
        self._step = Step(cache=cache.struct())
        self._state_memory: Tensor | None = None
        self._logits = Logits()
        self._scratch = Scratch()

    def forward(
        self,
        token_ids: IntArray,
        positions: IntArray,
        query_start: IntArray,
        seq_lens: IntArray,
        block_tables: IntArray,
        output_rows: IntArray,
        copies: SlotCopies | None = None,
        *,
        rope_positions: IntArray | None = None,
        embedding_rows: IntArray | None = None,
        embeddings: Tensor | None = None,
        columns: Tensor | None = None,
        adapter_ids: IntArray | None = None,
        states: StateColumns | None = None,
        most_likely: MostLikely | None = None,
    ) -> Tensor:
        """Run one step and write its keys and values to the cache.

        Args:
            token_ids, positions: [num_tokens], grouped by sequence.
            query_start: [num_seqs + 1], first token of each sequence in the step.
            seq_lens: [num_seqs], tokens in the KV after the step.
            block_tables: [num_seqs, max_blocks].
            output_rows: [num_outputs], ascending indices of the tokens whose hidden states are
                returned.
            copies: KV copies in each layer, made after the step's own KV was written, for sequences
                that share tokens of the step.
            rope_positions: [axes, num_tokens], for rope ops with sections; by default all axes have
                a token's position.
            embedding_rows: [num_tokens], the row of `embeddings` that replaces the token's row of
                the embedding table, or -1.
            embeddings: contiguous float32 [rows, embedding_size].
            columns: contiguous float32 [num_tokens, columns of the op input], if there is one.
            adapter_ids: [num_tokens], the adapter of each token; negative: none.
            states: the rows of the sequences' states, of a program that has states.
            most_likely: is filled for the outputs. The host works before the step for that, and
                not between the step and its logits, when the caches hold none of its code.

        Returns:
            float32 [num_outputs, hidden_size].
        """
        arrays = (token_ids, positions, query_start, seq_lens, block_tables, output_rows)
        addresses = [_address(array) for array in arrays]
        hidden = torch.empty((output_rows.size, self._hidden_size), dtype=torch.float32)
        step = self._step
        batch = step.batch
        batch.num_tokens, batch.num_seqs = token_ids.size, seq_lens.size
        step.token_ids, step.positions, batch.query_start, batch.seq_lens = addresses[:4]
        batch.block_tables, step.output_rows = addresses[4:]
        batch.block_table_stride = block_tables.shape[1]
        step.num_outputs = output_rows.size
        step.hidden = hidden.data_ptr()
        step.copies = KVCopies() if copies is None else copies.struct()
        step.rope_positions = None if rope_positions is None else _address(rope_positions)
        step.embedding_rows = None if embedding_rows is None else _address(embedding_rows)
        step.embeddings = None if embeddings is None else embeddings.data_ptr()
        step.adapter_ids = None if adapter_ids is None else _address(adapter_ids)
        step.columns = self._checked_columns(columns, token_ids.size)
        if states is not None:
            step.states = self._states(states)
        if step.num_kept:
            width = step.num_kept * self._hidden_size
            self.kept_hidden = torch.empty((token_ids.size, width), dtype=torch.float32)
            step.kept = self.kept_hidden.data_ptr()
        if most_likely is None:
            self._prepare("forward", step)
            self._call("forward", step)
            return hidden
        self._set_logits(hidden, None, most_likely)
        self._prepare("forward", step)
        self._prepare("logits", self._logits)
        step.scratch = self._logits.scratch  # may have moved; one begins when the other has ended
        self._call("forward", step)
        if output_rows.size:
            self._call("logits", self._logits)
        return hidden

    def set_states(self, memory: Tensor) -> None:
        """Keep the states of sequences in contiguous float32 memory [num_rows, size of a row]."""
        self._state_memory = memory

    def decoding(self, rows: DecodeRows) -> DecodeProgram:
        """The program that runs decode steps of `rows`.

        Raises:
            ValueError: the model has an op input, whose columns a decode step does not give.
        """
        if self._num_columns:
            raise ValueError("decode steps give no columns to a model with an op input")
        return DecodeProgram(
            self._kernels,
            self._quick_lib,
            self._program,
            self.cache.struct(),
            self._hidden_size,
            rows,
            self._scratch,
            self._state_memory,
        )

    def compute_logits(self, hidden: Tensor, masks: MaskColumns | None = None) -> Tensor:
        """Logits, float32 [num_rows, vocab_size], of float32 hidden [num_rows, hidden_size].

        Args:
            masks: the logits of tokens that a row's mask bans are -inf. Parts of the vocabulary
                that the masks of all rows ban are not computed.
        """
        logits = torch.empty((hidden.shape[0], self._vocab_size), dtype=torch.float32)
        self._set_logits(hidden, logits, None, masks)
        self._run_logits()
        return logits

    def most_likely(self, hidden: Tensor, masks: MaskColumns | None = None) -> Tensor:
        """Most likely tokens, int32 [num_rows], of hidden states; the lowest id among equal logits.

        NO_TOKEN where the greatest logit is not finite.

        Args:
            masks: as for `compute_logits`.
        """
        found = MostLikely.of(hidden.shape[0])
        self._set_logits(hidden, None, found, masks)
        self._run_logits()
        return found.token_ids

    def most_likely_logprobs(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """`most_likely`, and the log probabilities of these tokens: float32 [num_rows].

        The log probability is undefined in rows with NO_TOKEN.
        """
        found = MostLikely.of(hidden.shape[0], gives_logprobs=True)
        assert found.logprobs is not None
        self._set_logits(hidden, None, found)
        self._run_logits()
        return found.token_ids, found.logprobs

    def keep_hidden(self, layers: Sequence[int]) -> None:
        """Keep the outputs of these layers in `kept_hidden` from the next step on.

        Not the last layer: it may compute the output rows alone.
        """
        self._kept_layers = np.array(layers, dtype=np.int32)
        self._step.num_kept = len(layers)
        self._step.kept_layers = _address(self._kept_layers)

    def _states(self, states: StateColumns) -> StateRows:
        assert self._state_memory is not None
        memory = self._state_memory
        return StateRows(memory.data_ptr(), memory.shape[1], *map(_address, states))

    def _checked_columns(self, columns: Tensor | None, num_tokens: int) -> int | None:
        wanted = [num_tokens, self._num_columns]
        if columns is None and not self._num_columns:
            return None
        if columns is None or list(columns.shape) != wanted:
            shape = None if columns is None else list(columns.shape)
            raise ValueError(f"the input columns must be {wanted}, not {shape}")
        if columns.dtype != torch.float32 or not columns.is_contiguous():
            raise ValueError("the input columns must be contiguous float32")
        return columns.data_ptr()

    def _set_logits(
        self,
        hidden: Tensor,
        out: Tensor | None,
        most_likely: MostLikely | None,
        masks: MaskColumns | None = None,
    ) -> None:
        if hidden.dtype != torch.float32 or not hidden.is_contiguous():
            raise ValueError("hidden states must be contiguous float32")
        logits = self._logits
        logits.count, logits.hidden = hidden.shape[0], hidden.data_ptr()
        logits.logits = None if out is None else out.data_ptr()
        logits.token_ids = logits.logprobs = None
        if most_likely is not None:
            logits.token_ids = most_likely.token_ids.data_ptr()
            if most_likely.logprobs is not None:
                logits.logprobs = most_likely.logprobs.data_ptr()
        logits.masks = (
            NO_MASKS if masks is None else masks.struct(hidden.shape[0], self._vocab_size)
        )

    def _run_logits(self) -> None:
        if self._logits.count:
            self._prepare("logits", self._logits)
            self._call("logits", self._logits)

    def _prepare(self, stage: str, arguments: Step | Logits) -> None:
        """Reserve the scratch memory of a stage."""
        count_bytes = getattr(self._quick_lib, f"taco_program_{stage}_bytes")
        num_bytes = count_bytes(
            self._kernels.pool, ctypes.byref(self._program), ctypes.byref(arguments)
        )
        arguments.scratch = self._scratch.reserve(num_bytes)

    def _call(self, stage: str, arguments: Step | Logits) -> None:
        run = getattr(self._kernels.lib, f"taco_program_{stage}")
        run(self._kernels.pool, ctypes.byref(self._program), ctypes.byref(arguments))


def _address(array: IntArray) -> int:
    if array.dtype != np.int32 or not array.flags.c_contiguous:
        raise ValueError(f"a step's arrays must be contiguous int32, not {array.dtype}")
    return array.__array_interface__["data"][0]


def _array(kind: type[_Struct], items: Sequence[_Struct]) -> Array[_Struct]:
    return (kind * len(items))(*items)
