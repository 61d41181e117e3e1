"""Schedulers that a gateway finds through a real Redis, which then breaks."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from support.fake_worker import FakeWorker, worker_info
from support.live_scheduler import GatedWorker, expected_tokens, read, request, scheduler
from support.patience import until
from support.redis_server import RedisServer
from taco_common.redis_link import RedisLink
from taco_gateway.engine import registry_reader, scheduler_client
from taco_gateway.engine.scheduler_client import SchedulerClient
from taco_proto.registry import (
    HASH_KEY_KEY,
    INDEX_KEY,
    INDEX_SECONDS,
    SchedulerRecord,
    decode_record,
    record_key,
)
from taco_scheduler.server import advertiser as advertiser_module
from taco_scheduler.server.advertiser import Advertiser
from taco_scheduler.server.service import SchedulerService

pytestmark = pytest.mark.process

NUM_BLOCKS = worker_info().num_blocks


class Registry:
    """A Redis, schedulers that register there, and a client that finds them.

    Attributes:
        addresses: of two schedulers.
    """

    def __init__(self, redis: RedisServer, directory: Path, stack: AsyncExitStack) -> None:
        self.redis = redis
        self.addresses = [f"unix:{directory}/{name}.sock" for name in "ab"]
        self._stack = stack

    @asynccontextmanager
    async def scheduler(self, which: int, worker: FakeWorker) -> AsyncIterator[SchedulerService]:
        """At the end it goes as if it was killed."""
        address = self.addresses[which]
        async with scheduler(address, worker) as service:
            advertiser = Advertiser(service, self.redis.config, address)
            advertiser.start()
            try:
                yield service
            finally:
                await advertiser._link.close()  # so that nothing is taken back
                await advertiser.withdraw()

    async def start(self, which: int, worker: FakeWorker | None = None) -> SchedulerService:
        return await self._stack.enter_async_context(
            self.scheduler(which, FakeWorker() if worker is None else worker)
        )

    async def client(self, model: str = "fake-model") -> SchedulerClient:
        link = RedisLink(self.redis.config)
        client = SchedulerClient(redis=link, model=model)
        link.start()
        client.start()
        self._stack.push_async_callback(link.close)
        self._stack.push_async_callback(client.close)
        return client

    def record(self, which: int) -> SchedulerRecord | None:
        data = self.redis.run("GET", record_key(self.addresses[which]))
        return None if data is None else decode_record(data, self.addresses[which])


@pytest.fixture(autouse=True)
def _haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens once a second happens more often."""
    monkeypatch.setattr(advertiser_module, "WRITE_SECONDS", 0.1)
    monkeypatch.setattr(registry_reader, "POLL_SECONDS", 0.1)


@pytest.fixture
async def registry(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Registry]:
    async with AsyncExitStack() as stack:
        yield Registry(redis_server, tmp_path, stack)


async def until_so(condition: Callable[[], bool], what: str) -> None:
    async def is_so() -> bool:
        return condition()

    await until(is_so, what)


async def until_usable(client: SchedulerClient, count: int) -> None:
    def is_so() -> bool:
        info = client.model_info()
        return info is not None and info.ready and info.num_blocks == count * NUM_BLOCKS

    await until_so(is_so, f"{count} schedulers to use")


async def check_serves(client: SchedulerClient) -> None:
    asked = [request([20 + number, 4, 5], seed=number) for number in range(4)]
    streams = [client.generate(one) for one in asked]
    for one, stream in zip(asked, streams, strict=True):
        assert await read(stream) == expected_tokens(one)


async def test_a_gateway_finds_the_schedulers_of_its_model(registry: Registry) -> None:
    a = await registry.start(0)
    client, other = await registry.client(), await registry.client("other-model")
    await until_usable(client, 1)
    b = await registry.start(1)
    await until_usable(client, 2)
    await check_serves(client)
    assert a.engine.counters.prompt_tokens
    assert b.engine.counters.prompt_tokens
    assert other.model_info() is None


async def test_a_record_says_what_is_there(registry: Registry) -> None:
    service = await registry.start(0, worker := GatedWorker())
    client = await registry.client()
    await until_usable(client, 1)
    stream = client.generate(asked := request([7] * 30))
    await until_so(lambda: (registry.record(0) or NOTHING).load > 0, "load")
    record = registry.record(0)
    assert record is not None
    assert (record.model, record.block_size, record.num_workers) == ("fake-model", 4, 1)

    def is_the_engines() -> bool:
        load = (registry.record(0) or NOTHING).load
        return load == sum(replica.load for replica in service.engine.replicas)

    await until_so(is_the_engines, "the load of the engine, which a step may just have changed")
    worker.allow(1000)
    assert await read(stream) == expected_tokens(asked)
    await until_so(lambda: len((registry.record(0) or NOTHING).prefixes) > 0, "prefixes")
    await until_so(lambda: (registry.record(0) or NOTHING).load == 0, "the end of the load")


NOTHING = SchedulerRecord(
    address="",
    model="",
    block_size=0,
    num_workers=0,
    load=0,
    hash_key=b"",
    prefixes=frozenset(),
)


async def test_all_schedulers_come_to_use_one_key(registry: Registry) -> None:
    await registry.start(0)
    await registry.start(1)

    def is_so() -> bool:
        key = registry.redis.run("GET", HASH_KEY_KEY)
        return all((registry.record(i) or NOTHING).hash_key == key for i in range(2))

    await until_so(is_so, "one key")


async def test_a_scheduler_that_shuts_down_takes_its_record_back(registry: Registry) -> None:
    async with scheduler(registry.addresses[0], FakeWorker()) as service:
        advertiser = Advertiser(service, registry.redis.config, registry.addresses[0])
        advertiser.start()
        await until_so(lambda: registry.record(0) is not None, "a record")
        await advertiser.withdraw()
        assert registry.record(0) is None
        assert registry.redis.run("ZCARD", INDEX_KEY) == 0
        await advertiser.withdraw()


async def test_a_dead_scheduler_is_forgotten_in_the_end(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await registry.client()
    async with registry.scheduler(0, FakeWorker()):
        await until_usable(client, 1)
        registry.redis.run("PEXPIRE", record_key(registry.addresses[0]), 1)
    assert list(client._links) == registry.addresses[:1]
    monkeypatch.setattr(scheduler_client, "FORGET_SECONDS", 0.0)
    await until_so(lambda: not client._links, "no address to dial")


@pytest.mark.parametrize("fault", ["kill", "flush", "pause"])
async def test_requests_survive_the_loss_of_redis(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Running and new requests continue, and a scheduler that starts later is found."""
    monkeypatch.setattr(scheduler_client, "FORGET_SECONDS", 0.0)
    await registry.start(0, worker := GatedWorker())
    client = await registry.client()
    await until_usable(client, 1)
    asked = request()
    stream = client.generate(asked)
    worker.allow(8)
    front = await read(stream, 3)
    link = client._reader._redis  # type: ignore[union-attr]
    match fault:
        case "kill":
            registry.redis.kill()
        case "pause":
            registry.redis.pause()
        case "flush":
            registry.redis.run("FLUSHALL")
    if fault != "flush":
        await until_so(lambda: not link.trusted, "an end of trust")
    worker.allow(10_000)
    assert front + await read(stream) == expected_tokens(asked)
    await check_serves(client)
    match fault:
        case "kill":
            registry.redis.start()
        case "pause":
            registry.redis.resume()
    await until_so(lambda: registry.record(0) is not None, "the record")
    await registry.start(1)
    await until_usable(client, 2)
    await check_serves(client)


async def test_redis_may_come_last(registry: Registry) -> None:
    registry.redis.kill()
    await registry.start(0)
    client = await registry.client()
    stream = client.generate(asked := request())
    registry.redis.start()
    assert await read(stream) == expected_tokens(asked)


async def test_a_scheduler_that_does_not_reach_redis_stays_in_use(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record vanishes, its stream does not."""
    monkeypatch.setattr(scheduler_client, "FORGET_SECONDS", 0.0)
    client = await registry.client()
    async with scheduler(registry.addresses[0], FakeWorker()) as service:
        advertiser = Advertiser(service, registry.redis.config, registry.addresses[0])
        advertiser.start()
        await until_usable(client, 1)
        await advertiser.withdraw()
        await registry.start(1)
        await until_usable(client, 2)
        await check_serves(client)
        assert set(client._links) == set(registry.addresses)
        # How long it has had none counts from the loss of its stream.
        assert not client._absent_since


async def test_invalid_records_are_ignored_with_one_log_line_each(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    redis = registry.redis
    for name, data in (("garbage:1", b"\xff" * 40), ("empty:1", b""), ("\udcff:1", b"x")):
        address = name.encode(errors="surrogateescape")
        redis.run("ZADD", INDEX_KEY, 2**40, address)
        redis.run("SET", b"taco:scheduler:" + address, data)
    redis.run("ZADD", INDEX_KEY, 2**40, "a list:1")
    redis.run("RPUSH", record_key("a list:1"), "x")
    await registry.start(0)
    client = await registry.client()
    await until_usable(client, 1)
    readings = 0

    def follow(seen: object) -> None:
        nonlocal readings
        readings += 1
        client.on_registry_read(seen)  # type: ignore[arg-type]

    assert client._reader is not None
    client._reader._tell = follow
    await until_so(lambda: readings == 2, "two more readings")
    assert caplog.text.count("the record of garbage:1 in Redis is ignored") == 1
    assert caplog.text.count("the record of empty:1 in Redis is ignored") == 1
    assert caplog.text.count("the record of a list:1 in Redis is ignored") == 1
    assert set(client._links) == {registry.addresses[0]}
    await check_serves(client)


async def test_a_scheduler_with_a_wrong_date_leaves_the_others_in_the_index(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = registry.redis
    redis.run("ZADD", INDEX_KEY, int(redis.run("TIME")[0]), "other:1")
    redis.run("ZADD", INDEX_KEY, int(redis.run("TIME")[0]) - 2 * int(INDEX_SECONDS), "old:1")
    tomorrow = time.time() + 86400
    monkeypatch.setattr(time, "time", lambda: tomorrow)
    await registry.start(0)
    await until_so(lambda: redis.run("ZSCORE", INDEX_KEY, "old:1") is None, "an index without it")
    assert redis.run("ZSCORE", INDEX_KEY, "other:1") is not None
    assert float(redis.run("ZSCORE", INDEX_KEY, registry.addresses[0])) < tomorrow - 3600


async def test_an_invalid_index_is_ignored_with_one_log_line(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.redis.run("SET", INDEX_KEY, "x")
    await registry.client()
    await registry.start(0)
    await until_so(lambda: "in Redis is ignored: WRONGTYPE" in caplog.text, "a reading")
    await until_so(lambda: "Redis rejects the scheduler's record" in caplog.text, "a writing")


async def test_the_loop_of_the_scheduler_does_not_wait_for_redis(registry: Registry) -> None:
    """A Redis that answers nothing costs its steps nothing."""
    registry.redis.pause()
    await registry.start(0)
    async with asyncio.timeout(60):
        client = SchedulerClient(registry.addresses[0])
        client.start()
        await check_serves(client)
        await client.close()
    registry.redis.resume()
