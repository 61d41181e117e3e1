"""The file format of one KV block on disk: a header that describes the block, then its bytes.

A reader trusts nothing before the checksums match. They are CRC-32, which the standard library
computes twice as fast as any other checksum (3.7 GB/s, against 1.5 GB/s for SHA-256, on the machine
this was written on). They detect damage, not attacks: only the owner can write to the directory.
"""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path

from taco_proto.kv_tiers import KEY_BYTES, StoredBlock, StoreReport

SUFFIX = ".kv"
TEMPORARY_SUFFIX = ".tmp"

_MAGIC = b"TACO KV1"
# Magic, fingerprint, size of the description and of the payload, checksum of the payload.
_FIELDS = struct.Struct("<8s16sIQI")
_CHECKSUM = struct.Struct("<I")  # of these fields and the description, which follows
_HEAD_BYTES = _FIELDS.size + _CHECKSUM.size
# Maximum size of a description, which holds a block's tokens and cache keys.
_MAX_DESCRIPTION = 1 << 20
_READ_BYTES = 4096


class BlockFileError(ValueError):
    """The file is truncated, damaged, or not a block of this model."""


def write_block(path: Path, fingerprint: bytes, block: StoredBlock, payload: memoryview) -> None:
    """Write a file and atomically replace an existing one: a reader sees all of it or nothing.

    The file is not synced to disk; its checksum detects a write torn by a power failure.

    Raises:
        OSError: writing failed; neither the new nor the old file exists then.
    """
    description = _encode(block)
    fields = _FIELDS.pack(
        _MAGIC, fingerprint, len(description), payload.nbytes, zlib.crc32(payload)
    )
    checksum = _CHECKSUM.pack(zlib.crc32(description, zlib.crc32(fields)))
    temporary = path.with_suffix(TEMPORARY_SUFFIX)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(temporary, flags, 0o600)
        try:
            _write_all(descriptor, [memoryview(fields + checksum + description), payload])
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except OSError:
        for name in (temporary, path):
            with suppress(OSError):
                name.unlink()
        raise


def read_block(path: Path, fingerprint: bytes, payload: memoryview) -> StoredBlock:
    """Read a file into `payload`, whose content is undefined if that fails.

    Raises:
        BlockFileError: the file is not what `write_block` wrote under that name and fingerprint.
        OSError: the file cannot be read.
    """
    descriptor = _open(path)
    try:
        block, start, checksum = _read_head(descriptor, path, fingerprint, payload.nbytes)
        _read_all(descriptor, payload, start)
    finally:
        os.close(descriptor)
    if zlib.crc32(payload) != checksum:
        raise BlockFileError("its content is damaged")
    return block


def describe_file(path: Path, fingerprint: bytes, payload_bytes: int) -> StoredBlock:
    """Read only the header of a file; raises as `read_block` does."""
    descriptor = _open(path)
    try:
        return _read_head(descriptor, path, fingerprint, payload_bytes)[0]
    finally:
        os.close(descriptor)


def key_of(path: Path) -> bytes | None:
    """The key of the block in a file of that name; None if the name is not a block's."""
    with suppress(ValueError):
        key = bytes.fromhex(path.stem)
        if len(key) == KEY_BYTES and path.name == name_of(key):
            return key
    return None


def name_of(key: bytes) -> str:
    return key.hex() + SUFFIX


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _read_head(
    descriptor: int, path: Path, fingerprint: bytes, payload_bytes: int
) -> tuple[StoredBlock, int, int]:
    """The block, the offset of its bytes, and their checksum."""
    head = os.pread(descriptor, _READ_BYTES, 0)
    if len(head) < _HEAD_BYTES:
        raise BlockFileError("it is truncated")
    magic, owner, size, stored_bytes, checksum = _FIELDS.unpack_from(head)
    if magic != _MAGIC or owner != fingerprint or stored_bytes != payload_bytes:
        raise BlockFileError("it is of another model or layout")
    end = _HEAD_BYTES + size
    if size > _MAX_DESCRIPTION or os.fstat(descriptor).st_size != end + payload_bytes:
        raise BlockFileError("it is truncated, or too long")
    if end > len(head):
        head = os.pread(descriptor, end, 0)
    description = head[_HEAD_BYTES:end]
    (head_checksum,) = _CHECKSUM.unpack_from(head, _FIELDS.size)
    if zlib.crc32(description, zlib.crc32(head[: _FIELDS.size])) != head_checksum:
        raise BlockFileError("its header is damaged")
    block = _decode(description)
    if key_of(path) != block.key:
        raise BlockFileError("it has another block's name")
    return block, end, checksum


def _encode(block: StoredBlock) -> bytes:
    # Imported here: a worker without a disk tier does not need protobuf.
    from taco_proto import scheduler_pb2 as pb
    from taco_proto.convert_kv_tiers import store_report_to_pb

    return pb.StoreReport.SerializeToString(store_report_to_pb(StoreReport(found=(block,))))


def _decode(description: bytes) -> StoredBlock:
    """Raises BlockFileError if the bytes are not a result of `_encode`."""
    from google.protobuf.message import DecodeError

    from taco_proto import scheduler_pb2 as pb
    from taco_proto.convert_kv_tiers import store_report_from_pb

    try:
        (block,) = store_report_from_pb(pb.StoreReport.FromString(description)).found
    except (ValueError, DecodeError) as error:
        raise BlockFileError("its header is invalid") from error
    return block


def _write_all(descriptor: int, buffers: list[memoryview]) -> None:
    while buffers:
        written = os.writev(descriptor, buffers)
        while buffers and written >= buffers[0].nbytes:
            written -= buffers.pop(0).nbytes
        if buffers:
            buffers[0] = buffers[0][written:]


def _read_all(descriptor: int, buffer: memoryview, start: int) -> None:
    while buffer:
        count = os.preadv(descriptor, [buffer], start)
        if not count:
            raise BlockFileError("it is truncated")
        buffer, start = buffer[count:], start + count
