"""A model's step on the CPU kernels in one call: the program's structs, and its runner."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import Array, Structure, c_bool, c_float, c_int32, c_int64, c_void_p
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from taco_kernels.cpu.kv_cache import PagedKV, SlotCopies
from taco_kernels.cpu.structs import (
    Attention,
    Batch,
    ExpertProduct,
    KVCache,
    KVCopies,
    Matrix,
    Router,
    TokenMasks,
)
from taco_kernels.cpu.token_masks import NO_MASKS, MaskColumns
from taco_kernels.library import CpuKernels, keep_gil
from taco_kernels.native.memory import Scratch

IntArray = npt.NDArray[np.int32]
_Struct = TypeVar("_Struct", bound=Structure)

NORM_KINDS = {"rms": 0, "layer": 1}
EPILOGUES = {"store": 0, "add": 1, "gate_mul": 2}
BUFFER_TYPES = {"f32": 0, "bf16": 1, "i8": 2}
OP_KINDS = (
    "embed",
    "norm",
    "encode",
    "linear",
    "rope",
    "activation",
    "add",
    "scale",
    "cap",
    "clip",
    "gate",
    "copy",
    "keep",
    "write_kv",
    "attend",
    "restrict_rows",
    "route",
    "experts",
    "head_linear",
    "head_copy",
    "input",
)
_MAX_BUFFERS = 64  # csrc/program/scratch.h
_TABLE_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class Table(Structure):
    _fields_ = (("data", c_void_p), ("stride", c_int64), ("type", c_int32))


class Buffer(Structure):
    _fields_ = (
        ("columns", c_int64),
        ("type", c_int32),
        ("num_groups", c_int64),
        ("is_local", c_bool),
        ("clears_tail", c_bool),
        ("is_restricted", c_bool),
    )


class Columns(Structure):
    _fields_ = (("buffer", c_int32), ("start", c_int32), ("size", c_int64))


class Op(Structure):
    _fields_ = (
        ("kind", c_int32),
        ("x", Columns),
        ("y", Columns),
        ("out", Columns),
        ("table", Table),
        ("matrix", Matrix),
        ("indexes_positions", c_bool),
        ("adds", c_bool),
        ("offset", c_int64),
        ("epilogue", c_int32),
        ("activation", c_int32),
        ("is_gated", c_bool),
        ("norm", c_int32),
        ("eps", c_float),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("group", c_int64),
        ("weight_step", c_int64),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("rotary_dim", c_int64),
        ("rotary_style", c_int32),
        ("num_sections", c_int64),
        ("sections", c_void_p),
        ("alpha", c_float),
        ("factor", c_float),
        ("index", c_int64),
        ("attention", Attention),
        ("live", c_void_p),
        ("num_live", c_int64),
        ("is_final", c_bool),
        ("router", Router),
        ("experts", ExpertProduct),
        ("ids", Columns),
        ("weights", Columns),
        ("num_heads", c_int64),
        ("x_stride", c_int64),
        ("out_stride", c_int64),
    )


class Stage(Structure):
    _fields_ = (("first", c_int64), ("count", c_int64), ("by_chunks", c_bool))


class Program(Structure):
    _fields_ = (
        ("num_buffers", c_int64),
        ("num_ops", c_int64),
        ("num_stages", c_int64),
        ("buffers", c_void_p),
        ("ops", c_void_p),
        ("stages", c_void_p),
        ("hidden", c_int32),
        ("embed_out", Matrix),
        ("lm_head", Matrix),
        ("logit_scale", c_float),
        ("logit_cap", c_float),
    )


class Step(Structure):
    _fields_ = (
        ("batch", Batch),
        ("cache", KVCache),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("rope_positions", c_void_p),
        ("embedding_rows", c_void_p),
        ("embeddings", c_void_p),
        ("num_outputs", c_int64),
        ("output_rows", c_void_p),
        ("hidden", c_void_p),
        ("num_kept", c_int64),
        ("kept_layers", c_void_p),
        ("kept", c_void_p),
        ("scratch", c_void_p),
        ("copies", KVCopies),
        ("columns", c_void_p),
    )


class Logits(Structure):
    _fields_ = (
        ("count", c_int64),
        ("hidden", c_void_p),
        ("logits", c_void_p),
        ("token_ids", c_void_p),
        ("logprobs", c_void_p),
        ("masks", TokenMasks),
        ("scratch", c_void_p),
    )


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
        if len(buffers) > _MAX_BUFFERS:
            raise ValueError(f"a program has at most {_MAX_BUFFERS} buffers, not {len(buffers)}")
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
        step.columns = self._checked_columns(columns, token_ids.size)
        if step.num_kept:
            width = step.num_kept * self._hidden_size
            self.kept_hidden = torch.empty((token_ids.size, width), dtype=torch.float32)
            step.kept = self.kept_hidden.data_ptr()
        self._run("forward", step)
        return hidden

    def compute_logits(self, hidden: Tensor, masks: MaskColumns | None = None) -> Tensor:
        """Logits, float32 [num_rows, vocab_size], of float32 hidden [num_rows, hidden_size].

        Args:
            masks: the logits of tokens that a row's mask bans are -inf. Parts of the vocabulary
                that the masks of all rows ban are not computed.
        """
        logits = torch.empty((hidden.shape[0], self._vocab_size), dtype=torch.float32)
        self._run_logits(hidden, logits, None, masks=masks)
        return logits

    def most_likely(self, hidden: Tensor, masks: MaskColumns | None = None) -> Tensor:
        """Most likely tokens, int32 [num_rows], of hidden states; the lowest id among equal logits.

        NO_TOKEN where the greatest logit is not finite.

        Args:
            masks: as for `compute_logits`.
        """
        token_ids = torch.empty(hidden.shape[0], dtype=torch.int32)
        self._run_logits(hidden, None, token_ids, masks=masks)
        return token_ids

    def most_likely_logprobs(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """`most_likely`, and the log probabilities of these tokens: float32 [num_rows].

        The log probability is undefined in rows with NO_TOKEN.
        """
        token_ids = torch.empty(hidden.shape[0], dtype=torch.int32)
        logprobs = torch.empty(hidden.shape[0], dtype=torch.float32)
        self._run_logits(hidden, None, token_ids, logprobs)
        return token_ids, logprobs

    def keep_hidden(self, layers: Sequence[int]) -> None:
        """Keep the outputs of these layers in `kept_hidden` from the next step on.

        Not the last layer: it may compute the output rows alone.
        """
        self._kept_layers = np.array(layers, dtype=np.int32)
        self._step.num_kept = len(layers)
        self._step.kept_layers = _address(self._kept_layers)

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

    def _run_logits(
        self,
        hidden: Tensor,
        out: Tensor | None,
        token_ids: Tensor | None,
        logprobs: Tensor | None = None,
        masks: MaskColumns | None = None,
    ) -> None:
        if hidden.dtype != torch.float32 or not hidden.is_contiguous():
            raise ValueError("hidden states must be contiguous float32")
        logits = self._logits
        logits.count, logits.hidden = hidden.shape[0], hidden.data_ptr()
        logits.logits = None if out is None else out.data_ptr()
        logits.token_ids = None if token_ids is None else token_ids.data_ptr()
        logits.logprobs = None if logprobs is None else logprobs.data_ptr()
        logits.masks = (
            NO_MASKS if masks is None else masks.struct(hidden.shape[0], self._vocab_size)
        )
        if logits.count:
            self._run("logits", logits)

    def _run(self, stage: str, arguments: Step | Logits) -> None:
        pool = self._kernels.pool
        pointers = ctypes.byref(self._program), ctypes.byref(arguments)
        num_bytes = getattr(self._quick_lib, f"taco_program_{stage}_bytes")(pool, *pointers)
        arguments.scratch = self._scratch.reserve(num_bytes)
        getattr(self._kernels.lib, f"taco_program_{stage}")(pool, *pointers)


def _address(array: IntArray) -> int:
    if array.dtype != np.int32 or not array.flags.c_contiguous:
        raise ValueError(f"a step's arrays must be contiguous int32, not {array.dtype}")
    return array.__array_interface__["data"][0]


def table_struct(table: Tensor) -> Table:
    """Rows of an embedding table: float32, bfloat16 or float16 [rows, columns].

    Raises:
        ValueError: its type is another, or its rows are not contiguous.
    """
    if table.dtype not in _TABLE_TYPES or table.stride(1) != 1:
        raise ValueError(
            f"embeddings of {table.dtype} with strides {table.stride()} cannot be read"
        )
    return Table(table.data_ptr(), table.stride(0), _TABLE_TYPES[table.dtype])


def _array(kind: type[_Struct], items: Sequence[_Struct]) -> Array[_Struct]:
    return (kind * len(items))(*items)
