"""A whole decoder-only transformer on the CPU kernels: its weights, and one step in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import Structure, c_bool, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from taco_kernels.cpu.kv_cache import PagedKV, SlotCopies
from taco_kernels.cpu.matmul import ACTIVATIONS, PackedMatrix
from taco_kernels.cpu.structs import Batch, KVCache, KVCopies, Matrix
from taco_kernels.library import CpuKernels
from taco_kernels.native.memory import Scratch

IntArray = npt.NDArray[np.int32]

NORM_KINDS = {"rms": 0, "layer": 1}
_TABLE_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class _Table(Structure):
    _fields_ = (("data", c_void_p), ("stride", c_int64), ("type", c_int32))


class _NormWeights(Structure):
    _fields_ = (("weight", c_void_p), ("bias", c_void_p))


class _Layer(Structure):
    _fields_ = (
        ("attn_norm", _NormWeights),
        ("mlp_norm", _NormWeights),
        ("qkv", Matrix),
        ("out", Matrix),
        ("up", Matrix),
        ("down", Matrix),
        ("sliding_window", c_int64),
    )


class _Decoder(Structure):
    _fields_ = (
        ("vocab_size", c_int64),
        ("hidden_size", c_int64),
        ("embedding_size", c_int64),
        ("intermediate_size", c_int64),
        ("num_layers", c_int64),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("norm", c_int32),
        ("norm_eps", c_float),
        ("activation", c_int32),
        ("attention_scale", c_float),
        ("pre_norm", c_bool),
        ("gated_mlp", c_bool),
        ("embeddings", _Table),
        ("positions", _Table),
        ("position_offset", c_int64),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("embed_in", Matrix),
        ("embed_out", Matrix),
        ("final_norm", _NormWeights),
        ("lm_head", Matrix),
        ("layers", c_void_p),
    )


class _Step(Structure):
    _fields_ = (
        ("batch", Batch),
        ("cache", KVCache),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("num_outputs", c_int64),
        ("output_rows", c_void_p),
        ("hidden", c_void_p),
        ("num_kept", c_int64),
        ("kept_layers", c_void_p),
        ("kept", c_void_p),
        ("scratch", c_void_p),
        ("copies", KVCopies),
    )


class _Logits(Structure):
    _fields_ = (
        ("count", c_int64),
        ("hidden", c_void_p),
        ("logits", c_void_p),
        ("token_ids", c_void_p),
        ("logprobs", c_void_p),
        ("scratch", c_void_p),
    )


@dataclass(frozen=True, slots=True)
class Norm:
    """Weights of a norm, float32 [size]; bias is None for RMSNorm."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights.

    Attributes:
        up: gate and up as a gated pair if the MLP is gated.
        sliding_window: number of tokens that a token sees, including itself; 0: all.
    """

    attn_norm: Norm
    mlp_norm: Norm
    qkv: PackedMatrix
    out: PackedMatrix
    up: PackedMatrix
    down: PackedMatrix
    sliding_window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A decoder's options and weights.

    Attributes:
        embeddings: [vocab_size, embedding_size], float32, bfloat16 or float16, rows contiguous;
            None: the rows of lm_head, which must be float32 or bfloat16.
        positions: learned position embeddings of one of these types, or None.
        position_offset: position p is row p + position_offset of `positions`.
        rotary: cosines and sines, float32 [positions, head_dim / 2] each, or None.
        embed_in, embed_out: projections between embeddings and layers of different widths.
        norm: one of NORM_KINDS.
        activation: one of matmul.ACTIVATIONS.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm: str
    norm_eps: float
    activation: str
    attention_scale: float
    pre_norm: bool
    gated_mlp: bool
    embeddings: Tensor | None
    positions: Tensor | None
    position_offset: int
    rotary: tuple[Tensor, Tensor] | None
    embed_in: PackedMatrix | None
    embed_out: PackedMatrix | None
    final_norm: Norm | None
    lm_head: PackedMatrix
    layers: Sequence[Layer] = field(default_factory=list)


class CpuDecoder:
    """The forward pass and logits of one model. Not thread safe.

    Attributes:
        cache: the KV cache of its sequences.
        kept_hidden: outputs of the `keep_hidden` layers in the last step, concatenated, float32
            [num_tokens, number of layers * hidden_size].
    """

    def __init__(self, kernels: CpuKernels, weights: Weights, cache: PagedKV) -> None:
        self._kernels = kernels
        self._weights, self.cache = weights, cache  # own the memory that the structs point to
        self._kept_layers = np.zeros(0, dtype=np.int32)
        self.kept_hidden = torch.empty((0, 0))
        self._layers = (_Layer * len(weights.layers))(*map(_layer, weights.layers))
        self._decoder = _decoder(weights, self._layers)
        self._hidden_size = self._decoder.hidden_size
        self._vocab_size = self._decoder.vocab_size
        self._step = _Step(cache=cache.struct())
        self._logits = _Logits()
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
        if step.num_kept:
            width = step.num_kept * self._hidden_size
            self.kept_hidden = torch.empty((token_ids.size, width), dtype=torch.float32)
            step.kept = self.kept_hidden.data_ptr()
        self._run("forward", step)
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits, float32 [num_rows, vocab_size], of float32 hidden [num_rows, hidden_size]."""
        logits = torch.empty((hidden.shape[0], self._vocab_size), dtype=torch.float32)
        self._run_logits(hidden, logits, None)
        return logits

    def most_likely(self, hidden: Tensor) -> Tensor:
        """Most likely tokens, int32 [num_rows], of hidden states; the lowest id among equal logits.

        NO_TOKEN where the greatest logit is not finite.
        """
        token_ids = torch.empty(hidden.shape[0], dtype=torch.int32)
        self._run_logits(hidden, None, token_ids)
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

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings, float32 [num_rows, embedding_size], of token ids [num_rows]."""
        if self._weights.embeddings is not None:
            return self._weights.embeddings[token_ids].float()
        return self._weights.lm_head.rows(token_ids).float()

    def _run_logits(
        self,
        hidden: Tensor,
        out: Tensor | None,
        token_ids: Tensor | None,
        logprobs: Tensor | None = None,
    ) -> None:
        if hidden.dtype != torch.float32 or not hidden.is_contiguous():
            raise ValueError("hidden states must be contiguous float32")
        logits = self._logits
        logits.count, logits.hidden = hidden.shape[0], hidden.data_ptr()
        logits.logits = None if out is None else out.data_ptr()
        logits.token_ids = None if token_ids is None else token_ids.data_ptr()
        logits.logprobs = None if logprobs is None else logprobs.data_ptr()
        if logits.count:
            self._run("logits", logits)

    def _run(self, stage: str, arguments: _Step | _Logits) -> None:
        lib, pool = self._kernels.lib, self._kernels.pool
        pointers = ctypes.byref(self._decoder), ctypes.byref(arguments)
        num_bytes = getattr(lib, f"taco_decoder_{stage}_bytes")(pool, *pointers)
        arguments.scratch = self._scratch.reserve(num_bytes)
        getattr(lib, f"taco_decoder_{stage}")(pool, *pointers)


def _address(array: IntArray) -> int:
    if array.dtype != np.int32 or not array.flags.c_contiguous:
        raise ValueError(f"a step's arrays must be contiguous int32, not {array.dtype}")
    return array.__array_interface__["data"][0]


def _layer(layer: Layer) -> _Layer:
    return _Layer(
        attn_norm=_norm(layer.attn_norm),
        mlp_norm=_norm(layer.mlp_norm),
        qkv=layer.qkv.struct,
        out=layer.out.struct,
        up=layer.up.struct,
        down=layer.down.struct,
        sliding_window=layer.sliding_window,
    )


def _decoder(weights: Weights, layers: Any) -> _Decoder:
    first = weights.layers[0]
    if weights.embeddings is None and weights.lm_head.dtype == torch.int8:
        raise ValueError("embeddings cannot be read from an int8 lm_head: it is rounded")
    cosines, sines = weights.rotary or (None, None)
    return _Decoder(
        vocab_size=weights.lm_head.struct.n,
        hidden_size=first.qkv.struct.k,
        embedding_size=weights.lm_head.struct.k,
        intermediate_size=first.down.struct.k,
        num_layers=len(weights.layers),
        num_heads=weights.num_heads,
        num_kv_heads=weights.num_kv_heads,
        head_dim=weights.head_dim,
        norm=NORM_KINDS[weights.norm],
        norm_eps=weights.norm_eps,
        activation=ACTIVATIONS[weights.activation],
        attention_scale=weights.attention_scale,
        pre_norm=weights.pre_norm,
        gated_mlp=weights.gated_mlp,
        embeddings=_table(weights.embeddings),
        positions=_table(weights.positions),
        position_offset=weights.position_offset,
        cosines=_floats(cosines),
        sines=_floats(sines),
        embed_in=_matrix(weights.embed_in),
        embed_out=_matrix(weights.embed_out),
        final_norm=_norm(weights.final_norm),
        lm_head=weights.lm_head.struct,
        layers=ctypes.addressof(layers),
    )


def _matrix(matrix: PackedMatrix | None) -> Matrix:
    return Matrix() if matrix is None else matrix.struct


def _norm(norm: Norm | None) -> _NormWeights:
    if norm is None:
        return _NormWeights()
    return _NormWeights(_floats(norm.weight), _floats(norm.bias))


def _table(table: Tensor | None) -> _Table:
    if table is None:
        return _Table()
    if table.dtype not in _TABLE_TYPES or table.stride(1) != 1:
        raise ValueError(
            f"embeddings of {table.dtype} with strides {table.stride()} cannot be read"
        )
    return _Table(table.data_ptr(), table.stride(0), _TABLE_TYPES[table.dtype])


def _floats(values: Tensor | None) -> int | None:
    if values is None:
        return None
    if values.dtype != torch.float32 or not values.is_contiguous():
        raise ValueError(f"these weights must be contiguous float32, not {values.dtype}")
    return values.data_ptr()
