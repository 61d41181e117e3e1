from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class SchedulerRecord(_message.Message):
    __slots__ = ("protocol_version", "address", "model", "block_size", "num_workers", "load", "hash_key", "prefix_hashes")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    HASH_KEY_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASHES_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    address: str
    model: str
    block_size: int
    num_workers: int
    load: int
    hash_key: bytes
    prefix_hashes: bytes
    def __init__(self, protocol_version: _Optional[int] = ..., address: _Optional[str] = ..., model: _Optional[str] = ..., block_size: _Optional[int] = ..., num_workers: _Optional[int] = ..., load: _Optional[int] = ..., hash_key: _Optional[bytes] = ..., prefix_hashes: _Optional[bytes] = ...) -> None: ...
