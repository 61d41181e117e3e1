"""The C ABI of csrc/collective: structures and functions as abi.cpp declares them."""

from __future__ import annotations

import ctypes
import enum
import functools

import torch

from taco_train.native.build import find

I32, I64, U64, POINTER = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64, ctypes.c_void_p

TYPES: dict[torch.dtype, int] = {
    torch.float16: 0,
    torch.bfloat16: 1,
    torch.float32: 2,
    torch.float64: 3,
    torch.uint8: 4,
    torch.int8: 5,
    torch.int16: 6,
    torch.int32: 7,
    torch.int64: 8,
    torch.bool: 9,
}
REDUCTIONS = {"sum": 0, "average": 1, "min": 2, "max": 3, "product": 4}


class Code(enum.IntEnum):
    """What a function returns."""

    OK = 0
    CLOSED = 1
    SILENT = 2
    MISMATCH = 3
    ABORTED = 4
    BROKEN = 5


class Kind(enum.IntEnum):
    """The operation that a rank says it has called."""

    ALL_REDUCE = 1
    ALL_GATHER = 2
    BROADCAST = 3
    ALL_TO_ALL = 4
    REDUCE_SCATTER = 5
    BARRIER = 6
    EXCHANGE = 7


class Report(ctypes.Structure):
    _fields_ = (("rank", I32), ("message", ctypes.c_char * 508))


class Description(ctypes.Structure):
    _fields_ = (
        ("kind", I32),
        ("type", I32),
        ("reduction", I32),
        ("wire", I32),
        ("count", U64),
        ("extra", I64),
    )


class CreateArguments(ctypes.Structure):
    _fields_ = (
        ("rank", I32),
        ("size", I32),
        ("sockets", ctypes.POINTER(I32)),
        ("numbers", ctypes.POINTER(I32)),
        ("num_local_ranks", I32),
        ("local_index", I32),
        ("local_ranks", ctypes.POINTER(I32)),
        ("bells", ctypes.POINTER(I32)),
        ("memory", I32),
        ("padding", I32),
        ("slot_bytes", U64),
        ("timeout_milliseconds", I64),
    )


class AllReduceArguments(ctypes.Structure):
    _fields_ = (
        ("data", POINTER),
        ("count", U64),
        ("kind", I32),
        ("type", I32),
        ("reduction", I32),
        ("wire", I32),
        ("schedule", I32),
        ("uses_stage", I32),
        ("num_shards", I32),
        ("padding", I32),
    )


class SparseArguments(ctypes.Structure):
    _fields_ = (
        ("data", POINTER),
        ("count", U64),
        ("residual", POINTER),
        ("momentum", POINTER),
        ("num_selected", U64),
        ("ratio", ctypes.c_double),
        ("momentum_factor", ctypes.c_float),
        ("schedule", I32),
        ("uses_stage", I32),
        ("num_shards", I32),
        ("averages", I32),
        ("as_float16", I32),
    )


class MoveArguments(ctypes.Structure):
    _fields_ = (
        ("description", Description),
        ("num_sends", I32),
        ("num_receives", I32),
        ("send_ranks", ctypes.POINTER(I32)),
        ("receive_ranks", ctypes.POINTER(I32)),
        ("send_data", ctypes.POINTER(POINTER)),
        ("receive_data", ctypes.POINTER(POINTER)),
        ("send_bytes", ctypes.POINTER(U64)),
        ("receive_bytes", ctypes.POINTER(U64)),
        ("longest", U64),
        ("is_shared", I32),
        ("may_be_shorter", I32),
    )


@functools.cache
def load() -> ctypes.CDLL:
    """The library, compiled first if this is a source tree whose library is missing or stale.

    Raises:
        NativeBuildError: it cannot be compiled.
    """
    library = ctypes.CDLL(str(find("collective")))
    numbers = ctypes.POINTER(I32)
    report = ctypes.POINTER(Report)
    signatures: dict[str, tuple[object, list[object]]] = {
        "memory_bytes": (U64, [I32, U64]),
        "create": (I32, [ctypes.POINTER(CreateArguments), ctypes.POINTER(POINTER), report]),
        "destroy": (None, [POINTER]),
        "add_schedule": (None, [POINTER, I32, I32, numbers, numbers, numbers]),
        "all_reduce": (I32, [POINTER, ctypes.POINTER(AllReduceArguments), report]),
        "sparse_all_reduce": (I32, [POINTER, ctypes.POINTER(SparseArguments), report]),
        "encode": (U64, [POINTER, POINTER, U64, U64, I32, POINTER]),
        "encoded_capacity": (U64, [U64, U64, I32]),
        "decode": (I32, [POINTER, U64, U64, I32, POINTER, report]),
        "move": (I32, [POINTER, ctypes.POINTER(MoveArguments), report]),
        "broadcast": (
            I32,
            [POINTER, ctypes.POINTER(Description), POINTER, U64, I32, I32, numbers, report],
        ),
        "abort": (None, [POINTER, ctypes.c_char_p]),
        "state": (
            None,
            [POINTER, ctypes.POINTER(U64), numbers, ctypes.POINTER(ctypes.c_char_p)],
        ),
        "reduce": (
            None,
            [I32, I32, POINTER, ctypes.POINTER(POINTER), U64, U64, I64, POINTER],
        ),
        "convert": (None, [I32, POINTER, I32, POINTER, U64]),
        "portable_float16": (None, [I32, POINTER, POINTER, U64]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"taco_collective_{name}")
        function.restype = result
        function.argtypes = arguments
    return library


def int32_array(values: list[int]) -> ctypes.Array[ctypes.c_int32]:
    return (I32 * len(values))(*values)
