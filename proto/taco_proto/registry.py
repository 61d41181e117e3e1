"""The registry of schedulers in Redis, through which gateways discover them.

An index holds the schedulers' addresses. Each scheduler writes a record under a separate key every
`WRITE_SECONDS`; the key has a TTL of `LIFETIME_SECONDS`.
"""

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from taco_proto import registry_pb2 as pb
from taco_proto.config import PROTOCOL_VERSION

# Load of a decoding sequence, in prompt tokens; measured with bench/scheduler/replicas.py.
DECODE_TOKENS = 32

HASH_BYTES = 8  # of the hash of a prefix
KEY_BYTES = 16  # of the secret that keys the hashes

INDEX_KEY = "taco:schedulers"  # sorted set: address by the time of its last record
HASH_KEY_KEY = "taco:schedulers:hash-key"
WRITE_SECONDS = 1.0
POLL_SECONDS = 1.0
LIFETIME_SECONDS = 5.0
# Seconds after which an address without a record leaves the index.
INDEX_SECONDS = 3600.0
MAX_SCHEDULERS = 256
MAX_PREFIXES = 1024
MAX_BLOCK_SIZE = 2**16
MAX_WORKERS = 2**16


class InvalidRecordError(ValueError):
    """A record is malformed or of another version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerRecord:
    """The record of one scheduler.

    Attributes:
        address: that gateways dial, `host:port` or `unix:/path`.
        model: name of the served model; empty: no worker has attached yet.
        block_size: tokens a KV block.
        num_workers: workers that accept new requests.
        load: estimated work of these workers together, in prompt tokens.
        hash_key: key of `prefixes`.
        prefixes: hashes of prefixes that are cached there; see `prefix_hashes`.
    """

    address: str
    model: str
    block_size: int
    num_workers: int
    load: int
    hash_key: bytes
    prefixes: frozenset[bytes]


def record_key(address: str) -> str:
    return f"taco:scheduler:{address}"


def encode_record(record: SchedulerRecord) -> bytes:
    return pb.SchedulerRecord(
        protocol_version=PROTOCOL_VERSION,
        address=record.address,
        model=record.model,
        block_size=record.block_size,
        num_workers=record.num_workers,
        load=record.load,
        hash_key=record.hash_key,
        prefix_hashes=b"".join(record.prefixes),
    ).SerializeToString()


def decode_record(data: bytes, address: str) -> SchedulerRecord:
    """Decodes the record of an address.

    Raises:
        InvalidRecordError: the record is malformed, of another version, or out of range.
    """
    try:
        message = pb.SchedulerRecord.FromString(data)
    except DecodeError:
        raise InvalidRecordError("it is not a scheduler record") from None
    if message.protocol_version != PROTOCOL_VERSION:
        raise InvalidRecordError(
            f"it has protocol version {message.protocol_version}, this gateway {PROTOCOL_VERSION}"
        )
    if message.address != address:
        raise InvalidRecordError("it names another address")
    if not message.block_size <= MAX_BLOCK_SIZE or (message.model and not message.block_size):
        raise InvalidRecordError(f"block_size {message.block_size} is out of range")
    if message.num_workers > MAX_WORKERS:
        raise InvalidRecordError(f"num_workers {message.num_workers} is out of range")
    packed = message.prefix_hashes
    if len(message.hash_key) != KEY_BYTES or len(packed) % HASH_BYTES:
        raise InvalidRecordError("its hashes have another size")
    if len(packed) > MAX_PREFIXES * HASH_BYTES:
        raise InvalidRecordError("it has too many hashes")
    return SchedulerRecord(
        address=address,
        model=message.model,
        block_size=message.block_size,
        num_workers=message.num_workers,
        load=message.load,
        hash_key=message.hash_key,
        prefixes=frozenset(
            packed[start : start + HASH_BYTES] for start in range(0, len(packed), HASH_BYTES)
        ),
    )
