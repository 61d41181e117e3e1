"""Records of schedulers: what is written is read, and what is not is refused in words."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taco_proto import registry_pb2 as pb
from taco_proto.registry import (
    HASH_BYTES,
    KEY_BYTES,
    MAX_PREFIXES,
    InvalidRecordError,
    SchedulerRecord,
    decode_record,
    encode_record,
)

RECORD = SchedulerRecord(
    address="10.0.0.1:7100",
    model="demo",
    block_size=16,
    num_workers=2,
    load=12345,
    hash_key=b"k" * KEY_BYTES,
    prefixes=frozenset(bytes([i] * HASH_BYTES) for i in range(5)),
)


def message(**changes: object) -> pb.SchedulerRecord:
    record = pb.SchedulerRecord.FromString(encode_record(RECORD))
    for name, value in changes.items():
        setattr(record, name, value)
    return record


def test_what_is_written_is_read() -> None:
    assert decode_record(encode_record(RECORD), RECORD.address) == RECORD


def test_a_scheduler_without_a_worker_has_a_record() -> None:
    empty = dataclasses.replace(
        RECORD, model="", block_size=0, num_workers=0, load=0, prefixes=frozenset()
    )
    assert decode_record(encode_record(empty), RECORD.address) == empty


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"protocol_version": 99}, "version 99"),
        ({"address": "elsewhere:1"}, "another address"),
        ({"block_size": 0}, "block_size"),
        ({"block_size": 2**20}, "block_size"),
        ({"num_workers": 2**20}, "num_workers"),
        ({"hash_key": b"short"}, "another size"),
        ({"prefix_hashes": b"1234567"}, "another size"),
        ({"prefix_hashes": bytes(HASH_BYTES * (MAX_PREFIXES + 1))}, "too many"),
    ],
)
def test_a_record_that_cannot_be_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidRecordError, match=reason):
        decode_record(message(**changes).SerializeToString(), RECORD.address)


@given(st.binary(max_size=300))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRecordError):
        decode_record(data, RECORD.address)


@given(st.data())
def test_a_damaged_record_is_read_or_refused(data: st.DataObject) -> None:
    written = bytearray(encode_record(RECORD))
    position = data.draw(st.integers(0, len(written) - 1))
    written[position] = data.draw(st.integers(0, 255))
    try:
        record = decode_record(bytes(written), RECORD.address)
    except InvalidRecordError:
        return
    assert record.address == RECORD.address
    assert len(record.prefixes) <= MAX_PREFIXES
