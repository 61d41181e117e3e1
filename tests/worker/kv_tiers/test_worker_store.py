"""A worker's disk tier end to end: from store commands over the link to reused tokens."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from support.checkpoints import make_checkpoint
from support.fake_scheduler import serve, soon
from support.plans import Join, ints, make_plan
from support.stored_blocks import Reports, stored_block
from taco_proto import scheduler_pb2 as pb
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.errors import ConfigurationError
from taco_proto.kv_tiers import StoreCommand, StoreReport
from taco_proto.steps import BlockCopies
from taco_worker.model_thread import ModelThread
from taco_worker.scheduler_link import SchedulerLink
from taco_worker.worker import Worker

PROMPT = [5, 17, 300, 42, 9, 77, 130, 6, 250, 11, 12, 13, 14, 15, 16, 18, 19, 20]
BLOCK = stored_block(*PROMPT[:16])


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> WorkerConfig:
    checkpoint = make_checkpoint(tmp_path_factory.mktemp("llama"))
    return WorkerConfig(
        model=ModelConfig(model=str(checkpoint)),
        num_blocks=32,
        max_num_seqs=4,
        num_threads=1,
        host_kv_bytes=2**20,
        kv_disk_bytes=2**20,
    )


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8"])
def test_a_prefix_outlives_the_worker(
    config: WorkerConfig, tmp_path: Path, kv_cache_dtype: str
) -> None:
    config = replace(config, kv_disk_path=str(tmp_path), kv_cache_dtype=kv_cache_dtype)
    worker = Worker(config)
    assert worker.info.num_disk_blocks == 2**20 // (worker._model.kv_block_bytes(16) + 4096)
    plan = make_plan({0: 18}, joined=[Join(0, PROMPT, [3, 11])])
    whole = worker.execute(plan).token_ids.tolist()
    copies = BlockCopies(offload_sources=ints([3]), offload_targets=ints([6]))
    assert worker.execute(replace(make_plan({}, step_id=2), copies=copies)).error == ""
    reports = Reports()
    worker.store(StoreCommand(writes=((6, BLOCK),)), reports)
    assert reports.found() == []
    assert reports.next() == StoreReport(written=(BLOCK.key,))
    worker.close()
    worker.close()

    worker = Worker(config)
    worker.store(StoreCommand(reads=((BLOCK.key, 1),)), reports)
    assert reports.found() == [BLOCK]
    assert reports.next().read == (BLOCK.key,)
    cached = Join(0, PROMPT, [9, 20], num_computed_tokens=16)
    copies = BlockCopies(load_sources=ints([1]), load_targets=ints([9]))
    output = worker.execute(replace(make_plan({0: 2}, joined=[cached]), copies=copies))
    assert output.token_ids.tolist() == whole


def test_a_garbage_collected_worker_releases_its_directory(
    config: WorkerConfig, tmp_path: Path
) -> None:
    for _ in range(3):
        worker = Worker(replace(config, kv_disk_path=str(tmp_path)))
        reports = Reports()
        worker.store(StoreCommand(), reports)
        assert reports.found() == []
        del worker
    (directory,) = tmp_path.iterdir()
    assert [path.name for path in directory.iterdir()] == ["lock"]


def test_a_worker_that_does_not_start_leaves_the_directory_to_the_next_one(
    config: WorkerConfig, tmp_path: Path
) -> None:
    config = replace(config, kv_disk_path=str(tmp_path))
    broken = replace(config, logits_processors=("support.logits_processors:FailsToStart",))
    with pytest.raises(ConfigurationError) as kept:  # a notebook keeps it, with its frames
        Worker(broken)
    worker = Worker(config)
    reports = Reports()
    worker.store(StoreCommand(), reports)
    assert reports.found() == []
    (directory,) = tmp_path.iterdir()
    assert [path.name for path in directory.iterdir()] == ["lock"]
    assert kept.value is not None
    worker.close()


def test_without_a_disk_tier_commands_fail(config: WorkerConfig) -> None:
    worker = Worker(config)
    assert worker.info.num_disk_blocks == 0
    reports = Reports()
    worker.store(StoreCommand(writes=((0, BLOCK),), reads=((bytes(16), 1),)), reports)
    assert reports.next() == StoreReport(is_complete=True, failed=(BLOCK.key, bytes(16)))


async def test_the_first_command_of_a_link_is_answered_with_the_stored_blocks(
    config: WorkerConfig, tmp_path: Path
) -> None:
    worker = Worker(replace(config, kv_disk_path=str(tmp_path)))
    address = f"unix:{tmp_path}/scheduler.sock"
    thread = ModelThread()
    async with serve(address) as scheduler:
        for found in ([], [BLOCK]):  # the second link reports what the first one stored
            link = asyncio.create_task(SchedulerLink(address, worker, thread).run(asyncio.Event()))
            hello = await soon(scheduler.worker_hellos.get())
            assert hello.num_disk_blocks == worker.info.num_disk_blocks > 0
            scheduler.plans.put_nowait(StoreCommand())
            report = await soon(scheduler.reports.get())
            assert list(report.found) == found
            assert report.is_complete
            scheduler.plans.put_nowait(StoreCommand(writes=((0, BLOCK),)))
            assert (await soon(scheduler.reports.get())).written == (BLOCK.key,)
            scheduler.plans.put_nowait(None)
            await soon(link)


async def test_an_invalid_command_ends_the_stream(config: WorkerConfig, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/scheduler.sock"
    async with serve(address) as scheduler:
        scheduler.plans.put_nowait(pb.WorkerCommand(store=pb.StoreCommand(deletes=[b"../x"])))
        link = SchedulerLink(address, Worker(config), ModelThread())
        assert "16 bytes, not 4" in await soon(link.run(asyncio.Event()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"host_kv_bytes": 0}, "a disk tier needs a host tier"),
        ({"kv_disk_bytes": 9}, "a disk tier of 9 bytes holds no block"),
        ({"kv_disk_path": "/proc/nowhere"}, "no KV directory /proc/nowhere"),
    ],
)
def test_an_invalid_disk_tier_is_one_line(
    config: WorkerConfig, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    wanted = replace(config, kv_disk_path=str(tmp_path))
    with pytest.raises(ConfigurationError, match=message) as caught:
        Worker(replace(wanted, **changes))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
