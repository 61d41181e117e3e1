"""BucketReducer on real ranks: costs and choices are equal on all, and the sums are right."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import astuple

import pytest
import torch

from support.communicators import communicator, own_rank
from support.train_processes import RankPool
from taco_train.lightcc.bucket_reducer import BucketReducer
from taco_train.lightcc.settings import Settings

SIZE = 4


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    with RankPool(SIZE) as pool:
        yield pool


def reduced(settings: Settings, hosts: str, count: int, op: str) -> tuple[object, list[str]]:
    """The costs that the rank measured, and its log."""
    lines: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, collect = logging.getLogger("taco_train.lightcc.bucket_reducer"), Collect()
    logger.setLevel(logging.INFO)
    logger.addHandler(collect)
    world, reducer = communicator(hosts), BucketReducer(settings)
    for _ in range(2):
        values = [torch.arange(count) % 100 + rank for rank in range(world.size)]
        buffer = values[own_rank()].float()
        reducer.all_reduce(world, buffer, op, ["bucket"], [count])
        stacked = torch.stack(values)
        expected = stacked.sum(0) if op == "sum" else stacked.amax(0)
        assert torch.equal(buffer, expected.float())  # small integers are exact in float16, too
    logger.removeHandler(collect)
    return astuple(reducer.costs(world)), lines


@pytest.mark.parametrize("hosts", ["aabb", "aaab", "abcd"])
def test_ranks_measure_and_decide_alike(ranks: RankPool, hosts: str) -> None:
    results = ranks.run(reduced, Settings(compression="auto"), hosts, 100_000, "sum")
    costs, lines = results[0]
    assert all(other == costs for other, _ in results)
    assert [other for _, other in results[1:]] == [[]] * (SIZE - 1)
    measured, decided = lines  # one line for the same decision, whatever the number of buffers
    assert re.match(
        r"measured: \d hosts, \d ranks each; ring \S+ ms and \d+ MB/s; hosts ", measured
    )
    assert decided.startswith("400000 bytes, float32 sum: ")
    assert "predicted: " in decided


def test_explicit_settings_need_no_measurement(ranks: RankPool) -> None:
    settings = Settings(two_level=True, compression="fp16")
    for _, lines in ranks.run(reduced, settings, "aabb", 100_000, "sum"):
        assert [line.partition(":")[0] for line in lines] in ([], ["measured"])
        assert not any("predicted" in line for line in lines)


def sum_of_large_values(compression: str) -> float:
    settings, buffer = Settings(compression=compression), torch.full((100,), 70_000.0)
    BucketReducer(settings).all_reduce(communicator("abcd"), buffer, "sum", ["bucket"], [100])
    assert buffer.eq(buffer[0]).all()
    return buffer[0].item()


def test_bfloat16_holds_what_float16_cannot(ranks: RankPool) -> None:
    assert ranks.run(sum_of_large_values, "fp16") == [float("inf")] * SIZE
    bound = 280_000 * 2**-7
    assert ranks.run(sum_of_large_values, "bf16") == [pytest.approx(280_000, abs=bound)] * SIZE


@pytest.mark.parametrize("settings", [Settings(two_level=False), Settings(compression="fp16")])
def test_other_ops_are_exact(ranks: RankPool, settings: Settings) -> None:
    ranks.run(reduced, settings, "aabb", 100_000, "max")


def top_k_steps(hosts: str) -> None:
    """Two tensors that are reduced together, apart and whole: the sums of all steps are exact."""
    world = communicator(hosts)
    settings = Settings(top_k=True, top_k_ratio=0.1, top_k_min_bytes=400, two_level=True)
    reducer = BucketReducer(settings)
    sizes, came, went = {"a": 300, "b": 211}, torch.zeros(511), torch.zeros(511)
    for step, names in enumerate(["ab", "ab", "ba", "a", "b", "ab", "a", "b"]):
        if step == 6:
            state = reducer.state_dict(world)
            assert state["rank"] == own_rank()
            world.residuals.clear()
            reducer = BucketReducer(Settings(two_level=True))
            reducer.load_state_dict(world, {**state, "rank": own_rank() + 1})
            others = reducer.state_dict(world)
            assert (others["residuals"], others["parts"]) == ({}, {})
            assert others["steps"] == state["steps"]  # ranks must send equal shares
            reducer.load_state_dict(world, {**state, "size": 5})  # changes nothing
            assert reducer.state_dict(world) == others
            reducer.load_state_dict(world, state)
        parts = [torch.arange(sizes[name]) % 7 + step + own_rank() for name in names]
        buffer = torch.cat(parts).float()
        reducer.all_reduce(world, buffer, "sum", list(names), [sizes[name] for name in names])
        for name, part, result in zip(
            names, parts, buffer.split([sizes[n] for n in names]), strict=True
        ):
            place = slice(0, 300) if name == "a" else slice(300, 511)
            came[place] += part
            went[place] += result
        if step == 0:
            assert 0 < (buffer != 0).float().mean() < 0.3
    assert reducer.state_dict(world) == {}
    world.all_reduce(came)
    assert torch.equal(came, went)


@pytest.mark.parametrize("hosts", ["aabb", "abcd"])
def test_top_k_loses_nothing_when_buckets_change(ranks: RankPool, hosts: str) -> None:
    ranks.run(top_k_steps, hosts)


def unnamed(hosts: str) -> None:
    reducer = BucketReducer(Settings(top_k=True, top_k_min_bytes=0, two_level=True))
    buffer = torch.ones(1000)
    reducer.all_reduce(communicator(hosts), buffer, "sum", ["noname.allreduce.1"], [1000])
    assert torch.equal(buffer, torch.full((1000,), 4.0))
    assert reducer.state_dict(communicator(hosts)) == {}


def test_tensors_without_a_name_are_sent_whole(ranks: RankPool) -> None:
    ranks.run(unnamed, "aabb")


def together_and_apart(hosts: str) -> None:
    """Tensors have the same sums in whatever buffer they travel."""
    world, reducer = communicator(hosts), BucketReducer(Settings())
    random = torch.Generator().manual_seed(own_rank())
    sizes = [70_001, 13, 30_000]
    values = torch.randn(sum(sizes), generator=random)
    whole = values.clone()
    reducer.all_reduce(world, whole, "sum", ["a", "b", "c"], sizes)
    parts = [part.clone() for part in values.split(sizes)]
    for name, part in zip("abc", parts, strict=True):
        reducer.all_reduce(world, part, "sum", [name], [part.numel()])
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("hosts", ["aabb", "aabc"])
def test_sums_do_not_depend_on_buckets(ranks: RankPool, hosts: str) -> None:
    ranks.run(together_and_apart, hosts)
