"""The structs of a model's program for ctypes, field by field as in csrc/program/."""

from __future__ import annotations

from ctypes import Structure, c_bool, c_float, c_int32, c_int64, c_void_p

from torch import Tensor

from taco_kernels.cpu.packed_matrix import SOURCE_DTYPES
from taco_kernels.cpu.recurrence_structs import Convolution, Recurrence, StateRows
from taco_kernels.cpu.structs import (
    Adapters,
    Attention,
    Batch,
    ColumnOrder,
    ExpertProduct,
    KVCache,
    KVCopies,
    Matrix,
    Router,
    TokenMasks,
)

NORM_KINDS = {"rms": 0, "layer": 1}
EPILOGUES = {"store": 0, "add": 1, "gate_mul": 2}
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
    "xielu",
    "multiply",
    "convolve",
    "recur",
)
MAX_BUFFERS = 64  # csrc/program/scratch.h


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
        ("adapters", Adapters),
        ("num_heads", c_int64),
        ("x_stride", c_int64),
        ("out_stride", c_int64),
        ("order", ColumnOrder),
        ("convolution", Convolution),
        ("recurrence", Recurrence),
        ("value", Columns),
        ("decay", Columns),
        ("beta", Columns),
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
        ("adapter_ids", c_void_p),
        ("states", StateRows),
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


def table_struct(table: Tensor) -> Table:
    """Rows of an embedding table: float32, bfloat16 or float16 [rows, columns].

    Raises:
        ValueError: its type is another, or its rows are not contiguous.
    """
    if table.dtype not in SOURCE_DTYPES or table.stride(1) != 1:
        raise ValueError(
            f"embeddings of {table.dtype} with strides {table.stride()} cannot be read"
        )
    return Table(table.data_ptr(), table.stride(0), SOURCE_DTYPES[table.dtype])
