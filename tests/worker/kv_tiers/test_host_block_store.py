"""Offloaded and reloaded KV blocks are bit-identical."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.checkpoints import make_checkpoint
from support.models import kernels_for, load_step_model
from support.plans import Join, ints, make_plan
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.errors import ConfigurationError
from taco_proto.steps import BlockCopies, StepOutput
from taco_worker.kv_tiers.host_block_store import HostBlockStore
from taco_worker.worker import Worker

BLOCK_SIZE = 16
PROMPT = [5, 17, 300, 42, 9, 77, 130, 6, 250, 11, 12, 13, 14, 15, 16, 18, 19, 20]
OTHER = [250, 3, 3, 99, *range(100, 114)]
KINDS = [
    ("torch", "float32", "auto"),
    ("torch", "bfloat16", "auto"),
    ("torch", "float32", "fp8"),
    ("torch", "bfloat16", "int8"),
    ("kernels", "float32", "auto"),
    ("kernels", "bfloat16", "auto"),
    ("kernels", "bfloat16", "int8"),
    ("kernels", "bfloat16", "fp8_e4m3"),
    ("kernels", "float32", "fp8_e5m2"),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("llama"), num_hidden_layers=5)


def make_worker(checkpoint: Path, serves: str = "kernels", **changes: object) -> Worker:
    dtype, kv_cache_dtype = str(changes.pop("dtype", "float32")), changes.pop("kv", "auto")
    config = WorkerConfig(
        model=ModelConfig(model=str(checkpoint), dtype=dtype),
        num_blocks=32,
        max_num_seqs=4,
        num_threads=1,
        host_kv_bytes=2**20,
        kv_cache_dtype=str(kv_cache_dtype),
    )
    return Worker(
        replace(config, **changes),  # type: ignore[arg-type]
        start_kernels=lambda num_threads: kernels_for(serves, 1),
    )


def copies(*, offload: dict[int, int] = {}, load: dict[int, int] = {}) -> BlockCopies:  # noqa: B006
    """Pairs of source and target."""
    return BlockCopies(
        offload_sources=ints(list(offload)),
        offload_targets=ints(list(offload.values())),
        load_sources=ints(list(load)),
        load_targets=ints(list(load.values())),
    )


def sampled(output: StepOutput) -> dict[int, int]:
    assert output.error == ""
    return dict(zip(output.slots.tolist(), output.token_ids.tolist(), strict=True))


@pytest.fixture(scope="module")
def small_worker(checkpoint: Path) -> Worker:
    return make_worker(checkpoint)


@pytest.fixture
def worker(small_worker: Worker) -> Worker:
    small_worker.reset()
    return small_worker


@pytest.mark.parametrize(("serves", "dtype", "kv"), KINDS)
def test_one_step_offloads_loads_and_writes_a_block(
    checkpoint: Path, serves: str, dtype: str, kv: str
) -> None:
    worker = make_worker(checkpoint, serves, dtype=dtype, kv=kv)
    whole = sampled(worker.execute(make_plan({0: 18}, joined=[Join(0, PROMPT, [3, 11])])))[0]

    # Block 3 is offloaded to host block 0, and the other sequence overwrites it in the same step.
    away = make_plan({1: 18}, left=[0], joined=[Join(1, OTHER, [3, 12])], step_id=2)
    other = sampled(worker.execute(replace(away, copies=copies(offload={3: 0}))))[1]

    # Block 3 is offloaded to host block 1, its old content is loaded, and half of it is recomputed.
    back = Join(2, PROMPT, [3, 20], num_computed_tokens=8)
    plan = make_plan({2: 10}, left=[1], joined=[back], step_id=3)
    plan = replace(plan, copies=copies(offload={3: 1}, load={0: 3}))
    assert sampled(worker.execute(plan)) == {2: whole}

    cached = Join(3, OTHER, [4, 21], num_computed_tokens=16)
    plan = make_plan({3: 2}, joined=[cached], step_id=4)
    assert sampled(worker.execute(replace(plan, copies=copies(load={1: 4})))) == {3: other}


@pytest.mark.parametrize(("serves", "dtype", "kv"), KINDS)
def test_every_bit_of_a_block_survives(checkpoint: Path, serves: str, dtype: str, kv: str) -> None:
    model = load_step_model(checkpoint, serves, dtype=dtype, kv_cache_dtype=kv)
    model.allocate_kv(6, BLOCK_SIZE, 64)
    assert model.kv_rows.shape == (6, model.kv_block_bytes(BLOCK_SIZE))
    tier = HostBlockStore(
        torch.zeros_like(model.kv_rows), model.kv_rows, num_parts=model.plan.num_layers
    )
    model.kv_rows.random_(0, 256)
    before = model.kv_rows.clone()
    tier.copy(copies(offload={0: 2, 5: 0, 3: 1}))
    model.kv_rows.zero_()
    # A step can load a host block that it has just filled.
    tier.copy(copies(offload={4: 3}, load={2: 5, 0: 3, 1: 0, 3: 1}))
    expected = torch.zeros_like(before)
    expected[5], expected[3], expected[0] = before[0], before[5], before[3]
    assert torch.equal(model.kv_rows, expected)


def test_a_step_without_rows_copies_blocks(worker: Worker) -> None:
    whole = sampled(worker.execute(make_plan({0: 18}, joined=[Join(0, PROMPT, [3, 11])])))[0]
    for step_id, each in enumerate((copies(offload={3: 0}), copies(load={0: 9})), start=2):
        output = worker.execute(replace(make_plan({}, step_id=step_id), copies=each))
        assert (output.error, output.slots.size) == ("", 0)
    cached = Join(1, PROMPT, [9, 20], num_computed_tokens=16)
    assert sampled(worker.execute(make_plan({1: 2}, joined=[cached]))) == {1: whole}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            copies(offload={32: 0}),
            "a block id to be offloaded is out of range: there are 32 blocks",
        ),
        (
            copies(offload={-1: 0}),
            "a block id to be offloaded is out of range: there are 32 blocks",
        ),
        (copies(offload={0: 10**6}), "a block id to be offloaded is out of range"),
        (copies(load={-1: 0}), "a block id to be loaded is out of range"),
        (copies(load={0: 32}), "a block id to be loaded is out of range: there are 32 blocks"),
        (copies(load={0: 1, 1: 1}), "two blocks are loaded to the same one"),
        (copies(offload={0: 1, 1: 1}), "two blocks are offloaded to the same one"),
        (BlockCopies(load_sources=ints([1])), "1 blocks are loaded to 0"),
    ],
)
def test_invalid_copies_fail_the_step_only(
    worker: Worker, wrong: BlockCopies, message: str
) -> None:
    good = make_plan({0: 18}, joined=[Join(0, PROMPT, [3, 11])])
    assert f"invalid plan: {message}" in worker.execute(replace(good, copies=wrong)).error
    assert sampled(worker.execute(replace(good, epoch=2))).keys() == {0}


def test_without_a_host_tier_nothing_can_be_copied(checkpoint: Path) -> None:
    worker = make_worker(checkpoint, host_kv_bytes=0)
    assert worker.info.num_host_blocks == 0
    plan = replace(make_plan({}), copies=copies(offload={0: 0}))
    assert "out of range: there are 0 blocks" in worker.execute(plan).error


def test_the_host_tier_has_as_many_blocks_as_fit(checkpoint: Path, worker: Worker) -> None:
    block_bytes = worker._model.kv_block_bytes(BLOCK_SIZE)
    assert worker.info.num_host_blocks == 2**20 // block_bytes
    with pytest.raises(ConfigurationError, match="a host tier of 5 bytes holds no block"):
        make_worker(checkpoint, host_kv_bytes=5)
    with pytest.raises(ConfigurationError, match=r"the host tier takes \d+ MiB, and only"):
        make_worker(checkpoint, host_kv_bytes=2**60)


def test_the_default_host_tier_shrinks_to_the_available_memory(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("memory.kv_sizing", "kv_tiers.tier_factory"):
        monkeypatch.setattr(f"taco_worker.{module}.available_cpu_memory", lambda: 2**24)
    options: dict[str, Any] = {"num_blocks": None, "host_kv_bytes": 2**60}
    with pytest.raises(ConfigurationError, match=r"the host tier takes \d+ MiB, and only"):
        make_worker(checkpoint, **options)
    worker = make_worker(checkpoint, **options, host_kv_may_shrink=True)
    block_bytes = worker._model.kv_block_bytes(BLOCK_SIZE)
    assert worker.info.num_host_blocks == 2**23 // block_bytes
    lines = [message for message in caplog.messages if "the host tier takes" in message]
    assert len(lines) == 1
    assert lines[0].startswith("the host tier takes 8 MiB instead of ")
    worker = make_worker(checkpoint, **options, host_kv_may_shrink=True, num_local_workers=4)
    assert worker.info.num_host_blocks == 2**21 // block_bytes


def test_the_kv_cache_leaves_memory_for_the_host_tier(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("memory.kv_sizing", "kv_tiers.tier_factory"):
        monkeypatch.setattr(f"taco_worker.{module}.available_cpu_memory", lambda: 2**24)
    assert make_worker(checkpoint, num_blocks=None, host_kv_bytes=2**20).info.num_blocks > 32
    with pytest.raises(ConfigurationError, match=r"of the 0\.0 MiB that are available"):
        make_worker(checkpoint, num_blocks=None, host_kv_bytes=2**24 - 2**12)


def test_local_workers_share_the_memory(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("memory.kv_sizing", "kv_tiers.tier_factory"):
        monkeypatch.setattr(f"taco_worker.{module}.available_cpu_memory", lambda: 2**22)
    options: dict[str, Any] = {"num_blocks": None, "max_num_seqs": 64, "host_kv_bytes": 0}
    alone, shared = (
        make_worker(checkpoint, **options, num_local_workers=count) for count in (1, 4)
    )
    block_bytes = alone._model.kv_block_bytes(BLOCK_SIZE)
    assert alone.info.num_blocks == 2**21 // block_bytes
    assert shared.info.num_blocks == 2**19 // block_bytes
