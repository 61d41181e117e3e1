"""The structs of convolutions and recurrences for ctypes: csrc/recurrence/recurrence_args.h."""

from __future__ import annotations

from ctypes import Structure, c_bool, c_float, c_int32, c_int64, c_void_p


class StateRows(Structure):
    _fields_ = (
        ("memory", c_void_p),
        ("stride", c_int64),
        ("rows", c_void_p),
        ("sources", c_void_p),
        ("saved_tokens", c_void_p),
        ("saved_rows", c_void_p),
    )


class StateBatch(Structure):
    _fields_ = (
        ("num_seqs", c_int64),
        ("query_start", c_void_p),
        ("states", StateRows),
        ("start", c_int64),
    )


class TokenColumns(Structure):
    _fields_ = (("data", c_void_p), ("stride", c_int64))


class Convolution(Structure):
    _fields_ = (
        ("columns", c_int64),
        ("width", c_int64),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("has_silu", c_bool),
        ("x", TokenColumns),
        ("out", TokenColumns),
        ("batch", StateBatch),
    )


class Recurrence(Structure):
    _fields_ = (
        ("kind", c_int32),
        ("num_heads", c_int64),
        ("num_key_heads", c_int64),
        ("key_dim", c_int64),
        ("value_dim", c_int64),
        ("rates", c_void_p),
        ("bias", c_void_p),
        ("skip", c_void_p),
        ("min_number", c_float),
        ("max_number", c_float),
        ("decays_columns", c_bool),
        ("query", TokenColumns),
        ("key", TokenColumns),
        ("value", TokenColumns),
        ("decay", TokenColumns),
        ("beta", TokenColumns),
        ("out", TokenColumns),
        ("batch", StateBatch),
    )
