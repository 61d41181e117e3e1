"""What ranks and the coordinator send each other: JSON once for each tensor, then small numbers."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from taco_train.lightcc.negotiation.requests import (
    Request,
    decode_requests,
    encode_requests,
)

_READY = struct.Struct("<BIIH")  # flags, bytes of ids, of requests, and of the failure
_ITEM = struct.Struct("<BI")  # whether ids follow, or JSON; how many of them, or its bytes
_BASE = struct.Struct("<I")  # the smallest id; a bit for each number from it follows
_MAX_ID_SPAN = 2**22
_MAX_FAILURE_BYTES = 1000
_JOINED, _LEAVING, _BLOCKED = 1, 2, 4
_JSON, _IDS = 0, 1


def encode_ids(ids: Iterable[int]) -> bytes:
    """A set of ids as the smallest and a bit vector from it: 20 bytes for 128 tensors."""
    numbers = sorted(ids)
    if not numbers:
        return b""
    base, bits = numbers[0], 0
    for number in numbers:
        bits |= 1 << (number - base)
    return _BASE.pack(base) + bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def decode_ids(data: bytes) -> list[int]:
    """Inverse of `encode_ids`, ascending.

    Raises:
        ValueError: the bytes are not a set of ids.
    """
    if not data:
        return []
    if not _BASE.size < len(data) <= _BASE.size + _MAX_ID_SPAN // 8:
        raise ValueError(f"a set of ids has {len(data)} bytes")
    (base,) = _BASE.unpack_from(data)
    bits = int.from_bytes(data[_BASE.size :], "little")
    found = []
    while bits:
        lowest = bits & -bits
        found.append(base + lowest.bit_length() - 1)
        bits ^= lowest
    return found


@dataclass(frozen=True, slots=True)
class Ready:
    """What a rank has become ready for since its last message.

    Attributes:
        ids: requests that the coordinator has numbered.
        requests: other requests, in full.
        joined: the rank has no more data, and contributes zeros.
        leaving: the rank shuts down.
        blocked: a thread of the rank has waited for a result for a while.
        failure: why the rank cannot compute with others any more; "": it can.
    """

    ids: Sequence[int] = ()
    requests: Sequence[Request] = ()
    joined: bool = False
    leaving: bool = False
    blocked: bool = False
    failure: str = ""

    def encode(self) -> bytes:
        ids = encode_ids(self.ids)
        requests = encode_requests(self.requests) if self.requests else b""
        flags = _JOINED * self.joined | _LEAVING * self.leaving | _BLOCKED * self.blocked
        failure = self.failure.encode(errors="replace")[:_MAX_FAILURE_BYTES]
        header = _READY.pack(flags, len(ids), len(requests), len(failure))
        return header + ids + requests + failure

    @staticmethod
    def decode(data: bytes) -> Ready:
        """Inverse of `encode`.

        Raises:
            ValueError: the bytes are no such message.
        """
        if len(data) < _READY.size:
            raise ValueError("a message of a rank is too short")
        flags, num_ids, num_requests, num_failure = _READY.unpack_from(data)
        end = _READY.size + num_ids
        requests_end = end + num_requests
        if requests_end + num_failure != len(data):
            raise ValueError("a message of a rank has a wrong length")
        return Ready(
            decode_ids(data[_READY.size : end]),
            decode_requests(data[end:requests_end]) if num_requests else [],
            bool(flags & _JOINED),
            bool(flags & _LEAVING),
            bool(flags & _BLOCKED),
            data[requests_end:].decode(errors="replace"),
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests that run as one collective, or fail together.

    Attributes:
        ids: numbers of the requests, in the order of the buffer; a batch with ids has no other
            field.
        requests: the requests as one rank sent them: a rank that has joined learns from them what
            it contributes.
        new_ids: numbers that ranks use for these requests from now on; empty: none.
        error: why the requests fail on every rank; "": they run.
        is_join: all ranks have joined.
        result: of a join, the last rank; of `ADD_GROUP`, the number of the process set.
    """

    ids: Sequence[int] = ()
    requests: Sequence[Request] = ()
    new_ids: Sequence[int] = ()
    error: str = ""
    is_join: bool = False
    result: int = -1

    def to_json(self) -> dict[str, Any]:
        return {
            "requests": [one.to_json() for one in self.requests],
            "new_ids": list(self.new_ids),
            "error": self.error,
            "is_join": self.is_join,
            "result": self.result,
        }

    @staticmethod
    def from_json(content: Any) -> Batch:
        """Read what the coordinator sent.

        Raises:
            ValueError: it is no batch.
        """
        try:
            return Batch(
                requests=[Request.from_json(one) for one in content["requests"]],
                new_ids=[int(one) for one in content["new_ids"]],
                error=str(content["error"]),
                is_join=bool(content["is_join"]),
                result=int(content["result"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"a batch cannot be read: {error}") from None


def encode_batches(batches: Sequence[Batch]) -> bytes:
    """The coordinator's message: batches in the order in which every rank runs them."""
    parts = []
    for batch in batches:
        if batch.ids:
            parts.append(_ITEM.pack(_IDS, len(batch.ids)))
            parts.append(struct.pack(f"<{len(batch.ids)}I", *batch.ids))
        else:
            content = json.dumps(batch.to_json(), separators=(",", ":")).encode()
            parts += [_ITEM.pack(_JSON, len(content)), content]
    return b"".join(parts)


def decode_batches(data: bytes) -> list[Batch]:
    """Inverse of `encode_batches`.

    Raises:
        ValueError: the bytes are no such message.
    """
    batches, start = [], 0
    while start < len(data):
        if start + _ITEM.size > len(data):
            raise ValueError("a message of the coordinator is cut off")
        tag, count = _ITEM.unpack_from(data, start)
        start += _ITEM.size
        end = start + count * (4 if tag == _IDS else 1)
        if tag not in (_IDS, _JSON) or end > len(data):
            raise ValueError("a message of the coordinator cannot be read")
        if tag == _IDS:
            batches.append(Batch(ids=struct.unpack_from(f"<{count}I", data, start)))
        else:
            batches.append(Batch.from_json(json.loads(data[start:end])))
        start = end
    return batches
