"""What TopK has not sent survives any change of buckets: nothing is lost, nothing comes twice."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from taco_train.collective.residuals import Residuals
from taco_train.lightcc.unsent import Bucket, Unsent

SIZES = {"a": 3, "b": 1, "c": 5, "d": 0}


class Shard:
    """A rank that owns a part of every bucket, and sends nothing of it."""

    def __init__(self, index: int, num_shards: int) -> None:
        self.index, self.num_shards = index, num_shards
        self.residuals = Residuals()
        self.unsent = Unsent(self.residuals)

    def contribute(self, bucket: Bucket, buffer: Tensor, *, keeps: bool) -> Tensor:
        self.unsent.prepare(bucket, buffer, keeps=keeps)
        return buffer

    def keep(self, bucket: Bucket, summed: Tensor) -> None:
        """What an owner of a shard does when TopK selects nothing."""
        count = summed.numel()
        begin = count * self.index // self.num_shards
        end = count * (self.index + 1) // self.num_shards
        residual = self.residuals.of(bucket.key, count, begin, end, has_momentum=False)
        residual.values += summed[begin:end]


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[list[str], bool, int]]:
    """Buckets of different names, whether TopK sends them, and the depth."""
    step = st.tuples(
        st.lists(st.sampled_from("abcd"), min_size=1, unique=True),
        st.booleans(),
        st.sampled_from([1, 2]),
    )
    return draw(st.lists(step, max_size=12))


@given(steps=steps(), reload_at=st.integers(0, 12))
def test_nothing_is_lost(steps: list[tuple[list[str], bool, int]], reload_at: int) -> None:
    """Sums of integers are exact: in the end, all that came in has come out."""
    ranks = [Shard(index, 2) for index in range(2)]
    came = {name: torch.zeros(size) for name, size in SIZES.items()}
    went = {name: torch.zeros(size) for name, size in SIZES.items()}
    last = [([name], False, 2) for name in SIZES]
    for number, (names, keeps, depth) in enumerate([*steps, *last]):
        if number == reload_at:
            for rank in ranks:
                state = rank.unsent.state_dict()
                rank.residuals = Residuals()
                rank.unsent = Unsent(rank.residuals)
                rank.unsent.load_state_dict(state)
        bucket = Bucket(depth, tuple(names), tuple(SIZES[name] for name in names))
        gradient = torch.arange(float(sum(bucket.sizes))) + number
        for name, part in zip(names, gradient.split(bucket.sizes), strict=True):
            came[name] += 2 * part
        summed = torch.zeros_like(gradient)
        for rank in ranks:
            summed += rank.contribute(bucket, gradient.clone(), keeps=keeps)
        for rank in ranks if keeps else []:
            rank.keep(bucket, summed)
        if not keeps:
            for name, part in zip(names, summed.split(bucket.sizes), strict=True):
                went[name] += part
    for name, size in SIZES.items():
        assert went[name].shape == (size,)
        assert torch.equal(went[name], came[name])


def test_same_bucket_keeps_its_residual() -> None:
    rank, bucket = Shard(0, 1), Bucket(2, ("a", "b"), (3, 1))
    for _ in range(3):
        rank.keep(bucket, rank.contribute(bucket, torch.ones(4), keeps=True))
    assert rank.residuals.state_dict()[bucket.key]["values"].tolist() == [3.0] * 4


def test_another_tensor_of_the_name_starts_anew() -> None:
    rank, bucket = Shard(0, 1), Bucket(2, ("a",), (3,))
    rank.keep(bucket, rank.contribute(bucket, torch.ones(3), keeps=True))
    smaller = rank.contribute(Bucket(2, ("a",), (2,)), torch.zeros(2), keeps=True)
    assert smaller.tolist() == [0.0, 0.0]


def test_key_names_the_bucket() -> None:
    bucket = Bucket(1, ("line\nbreak", "b 2"), (3, 4))
    assert Bucket.of(bucket.key) == bucket
