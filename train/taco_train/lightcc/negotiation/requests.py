"""A collective that a rank wants to run, as other ranks must want it too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from math import prod
from typing import Any

UNNAMED = "noname."  # how names begin that the library made up
MAX_NAME = 1024
MAX_DIMENSIONS = 64


class Kind(StrEnum):
    """Which collective."""

    ALL_REDUCE = "allreduce"
    ALL_GATHER = "allgather"
    BROADCAST = "broadcast"
    ALL_TO_ALL = "alltoall"
    REDUCE_SCATTER = "reducescatter"
    BARRIER = "barrier"
    ADD_GROUP = "add_process_set"
    REMOVE_GROUP = "remove_process_set"


@dataclass(frozen=True, slots=True)
class Request:
    """One rank's call of a collective.

    Attributes:
        kind, name: the collective, and the name under which all ranks submit it.
        dtype, shape: of this rank's tensor.
        op: of reductions: "sum", "average", "min", "max", "product", "adasum".
        root: of a broadcast, its rank among all ranks.
        group: number of the process set; 0: all ranks.
        device: "cpu" or "cuda".
        prescale, postscale: factors before and after a reduction.
        together: a label; requests that share it run only when all of them are ready on all ranks.
        num_together: how many requests have that label.
        ranks: of `ADD_GROUP` and `REMOVE_GROUP`, the process set's ranks.
    """

    kind: Kind
    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    op: str = ""
    root: int = -1
    group: int = 0
    device: str = "cpu"
    prescale: float = 1.0
    postscale: float = 1.0
    together: str = ""
    num_together: int = 0
    ranks: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[int, str]:
        """What identifies it among the pending requests of a rank."""
        return self.group, self.name

    @property
    def is_unnamed(self) -> bool:
        """Whether the next call of the same line has another name."""
        return self.name.startswith(UNNAMED)

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    def difference(self, other: Request) -> str:
        """The first field in which two ranks' requests differ and must not; "": none."""
        for field in fields(Request):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if field.name == "shape" and self.has_free_rows:
                mine, theirs = (len(mine), *mine[1:]), (len(theirs), *theirs[1:])
            if mine != theirs:
                return field.name
        return ""

    @property
    def has_free_rows(self) -> bool:
        """Whether the first dimension may differ between ranks."""
        return self.kind in (Kind.ALL_GATHER, Kind.ALL_TO_ALL)

    def describe(self, field: str) -> str:
        value = getattr(self, field)
        return str(list(value)) if isinstance(value, tuple) else str(value)

    def to_json(self) -> dict[str, Any]:
        """Only fields that differ from their defaults."""
        content = asdict(self)
        return {
            field.name: content[field.name]
            for field in fields(Request)
            if content[field.name] != field.default
        }

    @staticmethod
    def from_json(content: Any) -> Request:
        """Check and read what another process sent.

        Raises:
            ValueError: it is no request.
        """
        if not isinstance(content, dict):
            raise ValueError(f"a request is no object: {content!r:.100}")
        try:
            values = {key: _checked(key, value) for key, value in content.items()}
            return Request(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"a request cannot be read: {error}: {content!r:.200}") from None


def encode_requests(requests: Sequence[Request]) -> bytes:
    return json.dumps([one.to_json() for one in requests], separators=(",", ":")).encode()


def decode_requests(data: bytes) -> list[Request]:
    """Inverse of `encode_requests`.

    Raises:
        ValueError: the bytes hold something else.
    """
    content = json.loads(data)
    if not isinstance(content, list):
        raise ValueError("requests are no list")
    return [Request.from_json(one) for one in content]


_INTEGERS = ("root", "group", "num_together")
_NUMBERS = ("prescale", "postscale")
_SIZES = ("shape", "ranks")


def _checked(name: str, value: Any) -> Any:
    if name == "kind":
        return Kind(value)
    if name in _INTEGERS:
        valid = type(value) is int
    elif name in _NUMBERS:
        valid = isinstance(value, int | float) and not isinstance(value, bool)
    elif name in _SIZES:
        valid = isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)
        valid = valid and (name != "shape" or len(value) <= MAX_DIMENSIONS)
        value = tuple(value) if valid else value
    else:
        valid = isinstance(value, str) and len(value) <= MAX_NAME
    if not valid:
        raise ValueError(f"{name} is {value!r:.100}")
    return value
