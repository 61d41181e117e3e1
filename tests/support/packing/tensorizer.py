"""Writes files as CoreWeave's tensorizer 2.12 does: tables of names, places and types, then data.

Source: `_FileHeader`, `_TensorHeaderSerializer` and `TensorSerializer` of tensorizer's
`serialization.py`, without hashes.
"""

import struct
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

_NUMPY = {
    torch.float32: "<f4",
    torch.float16: "<f2",
    torch.int64: "<i8",
    torch.int32: "<i4",
    torch.uint8: "|u1",
    torch.bfloat16: "<V2\0torch.bfloat16",
    torch.float8_e4m3fn: "|V1\0torch.float8_e4m3fn",
}


def write(path: Path, tensors: Mapping[str, Tensor], *, flags: int = 2, version: int = 4) -> Path:
    """`flags`: 1 for encrypted files, 2 where each entry of the table has a version."""
    size = sum(len(_entry(name, tensor, 0, flags)) for name, tensor in tensors.items())
    place = 5 + 60 + 8 + size
    table, data = b"", b""
    for name, tensor in tensors.items():
        data += bytes(-(place + len(data)) % 8)
        table += _entry(name, tensor, place + len(data), flags)
        data += tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    header = struct.pack("<I", version) + flags.to_bytes(32, "little")
    header += struct.pack("<Q8xQ", len(data), len(tensors)) + struct.pack("<Q", len(table))
    path.write_bytes(b"|TZR|" + header + table + data)
    return path


def _entry(name: str, tensor: Tensor, start: int, flags: int) -> bytes:
    dtype = _NUMPY[tensor.dtype].encode()
    entry = struct.pack("<I", 1) if flags & 2 else b""
    entry += struct.pack("<H", len(name)) + name.encode() + b"\x02"
    entry += struct.pack("<B", len(dtype)) + dtype
    entry += struct.pack(f"<B{tensor.ndim}I", tensor.ndim, *tensor.shape)
    return entry + struct.pack("<QQQ", 0, start, tensor.nbytes)
