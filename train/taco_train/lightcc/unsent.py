"""Which tensors share a bucket, and what TopK has not sent when that changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from taco_train.collective.residuals import Residuals


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tensors one after the other in a buffer.

    Attributes:
        depth: levels at which it is reduced: which shards ranks own depends on it.
        names, sizes: of each tensor; sizes in elements.
    """

    depth: int
    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def key(self) -> str:
        """Of its residual."""
        return json.dumps([self.depth, self.names, self.sizes])

    @classmethod
    def of(cls, key: str) -> Bucket:
        """The bucket of a residual's key."""
        depth, names, sizes = json.loads(key)
        return cls(depth, tuple(names), tuple(sizes))


@dataclass(frozen=True, slots=True)
class _Part:
    """Values that were not sent, of a tensor, from element `begin` on."""

    begin: int
    values: Tensor


class Unsent:
    """The residuals of one communicator, by the tensors that they belong to.

    A residual belongs to a bucket. When its tensors come in other buckets, or are sent whole, this
    rank adds its part of the residual to what it contributes next: the sum over ranks loses
    nothing. Momentum of the old bucket is dropped.

    Args:
        residuals: of the communicator.
    """

    def __init__(self, residuals: Residuals) -> None:
        self._residuals = residuals
        self._bucket_of: dict[str, Bucket] = {}
        self._parts: dict[str, list[_Part]] = {}

    def prepare(self, bucket: Bucket, buffer: Tensor, *, keeps: bool) -> None:
        """Add to the buffer what earlier buckets did not send of its tensors.

        Args:
            buffer: float32, the bucket's tensors; changed in place.
            keeps: TopK follows: the bucket's own residual stays.
        """
        # In almost every step the buckets are those of the step before.
        if not self._parts:
            is_same = self._bucket_of.get(bucket.names[0]) is bucket
            if is_same if keeps else not self._bucket_of:
                return
        for name in bucket.names:
            old = self._bucket_of.get(name)
            if old is not None and (old != bucket or not keeps):
                self._dissolve(old)
        if keeps:
            self._bucket_of.update(dict.fromkeys(bucket.names, bucket))
        start = 0
        for name, size in zip(bucket.names, bucket.sizes, strict=True):
            for part in self._parts.pop(name, ()):
                if part.begin + part.values.numel() <= size:  # else another tensor has the name
                    at = start + part.begin
                    buffer[at : at + part.values.numel()] += part.values.to(buffer.device)
            start += size

    @property
    def is_empty(self) -> bool:
        """Whether TopK has sent nothing yet: there is nothing to save."""
        return not self._bucket_of and not self._parts and not self._residuals.steps

    def state_dict(self) -> dict[str, Any]:
        """Of this rank; tensors are copied."""
        return {
            "residuals": _copied(self._residuals.state_dict()),
            "steps": self._residuals.steps,
            "parts": {
                name: [[part.begin, part.values.clone()] for part in parts]
                for name, parts in self._parts.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any], *, has_same_shards: bool = True) -> None:
        """Continue with what `state_dict` gave, on the same rank among as many.

        Args:
            has_same_shards: hosts have the same ranks as then, so each rank owns the same shards.
        """
        self._residuals.load_state_dict(state["residuals"])
        self._bucket_of = {}
        for key in state["residuals"]:
            bucket = Bucket.of(key)
            self._bucket_of.update(dict.fromkeys(bucket.names, bucket))
        self._parts = {
            name: [_Part(begin, values.clone()) for begin, values in parts]
            for name, parts in state["parts"].items()
        }
        if not has_same_shards:
            for bucket in set(self._bucket_of.values()):
                self._dissolve(bucket)
        self.count_from(state)

    def count_from(self, state: Mapping[str, Any]) -> None:
        """Take the ratio's steps of a state, also of another rank's."""
        self._residuals.set_steps(state["steps"])

    def _dissolve(self, bucket: Bucket) -> None:
        """Divide the bucket's residual among its tensors."""
        for name in bucket.names:
            self._bucket_of.pop(name, None)
        residual = self._residuals.pop(bucket.key)
        if residual is None:
            return
        start = 0
        for name, size in zip(bucket.names, bucket.sizes, strict=True):
            begin, end = max(start, residual.begin), min(start + size, residual.end)
            if begin < end:
                values = residual.values[begin - residual.begin : end - residual.begin]
                self._parts.setdefault(name, []).append(_Part(begin - start, values))
            start += size


def _copied(state: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        key: {
            name: value.clone() if isinstance(value, Tensor) else value
            for name, value in fields.items()
        }
        for key, fields in state.items()
    }
