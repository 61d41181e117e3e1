"""Two gateways as processes that share keys and limits through Redis, in front of two schedulers,
under requests that do not stop: whatever happens to Redis, none of them fails.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from support.cluster import Process
from support.fake_worker import FakeWorker, worker_info
from support.gateway_app import write_tokenizer
from support.live_scheduler import scheduler
from support.patience import PATIENCE_SECONDS, until
from support.redis_server import RedisServer
from taco_gateway.api_keys.key_ring import ApiKey
from taco_gateway.api_keys.redis_key_store import KEYS, RedisKeyStore
from taco_gateway.engine.rate_limit_scripts import limit_keys
from taco_llm.args.flags import GATEWAY
from taco_proto.config import GatewayConfig, ModelConfig
from taco_proto.requests import Tenant

pytestmark = pytest.mark.process

BODY = {"prompt": "x", "max_tokens": 3, "ignore_eos": True}
# Timeout of Redis: a request waits for it twice when Redis begins to hang.
REDIS_SECONDS = 1.0
NUM_CLIENTS = 4
TEAM = Tenant(name="team", max_tokens_per_minute=10**9)
SMALL = Tenant(name="small", max_requests_per_minute=1)


class Front:
    """Two gateways, and clients of both.

    Attributes:
        processes: the gateways.
        store: the keys in Redis.
    """

    def __init__(self, directory: Path, redis: RedisServer, schedulers: str) -> None:
        config = GatewayConfig(
            model=ModelConfig(
                model=str(write_tokenizer(directory / "model")), served_model_names=("m",)
            ),
            scheduler=schedulers,
            log_requests=False,
            redis=replace(redis.config, timeout=REDIS_SECONDS),
            redis_keys=True,
        )
        paths = [str(directory / f"http-{number}.sock") for number in range(2)]
        self.processes = [
            Process(GATEWAY, replace(config, uds=path), directory / f"gateway-{number}.log")
            for number, path in enumerate(paths)
        ]
        transports = [httpx.AsyncHTTPTransport(uds=path, retries=0) for path in paths]
        self.clients = [
            httpx.AsyncClient(transport=t, base_url="http://gateway", timeout=PATIENCE_SECONDS)
            for t in transports
        ]
        self.store = RedisKeyStore(redis.config)

    async def answer(self, key: str, gateway: int = 0) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        return await self.clients[gateway].post("/v1/completions", json=BODY, headers=headers)

    async def statuses(self, key: str) -> list[int]:
        return [(await self.answer(key, number)).status_code for number in range(2)]

    async def until_statuses(self, key: str, status: int) -> None:
        async def is_so() -> bool:
            return await self.statuses(key) == [status] * 2

        await until(is_so, f"status {status} of both gateways")

    async def assert_one_of_two_is_refused(self, key: str) -> None:
        """Of requests through different gateways."""
        first, second = [await self.answer(key, number) for number in range(2)]
        assert (first.status_code, second.status_code) == (200, 429)
        assert second.json()["error"]["code"] == "rate_limit_exceeded"
        assert 0 < int(second.headers["retry-after"]) <= 60

    async def until_ready(self) -> None:
        async def is_so() -> bool:
            try:
                found = [(await client.get("/health")).status_code for client in self.clients]
            except httpx.ConnectError:
                return False
            return found == [200, 200]

        await until(is_so, "two gateways")

    async def until_trust(self, *, trusted: bool) -> None:
        async def is_so() -> bool:
            pages = [(await client.get("/metrics")).text for client in self.clients]
            return all(f'redis_trusted{{model_name="m"}} {trusted:d}.0' in page for page in pages)

        await until(is_so, f"trust in Redis: {trusted}")

    @asynccontextmanager
    async def load(self, key: str) -> AsyncIterator[Counter[int]]:
        """Clients that ask both gateways again and again; counts statuses."""
        statuses: Counter[int] = Counter()

        async def ask(gateway: int) -> None:
            while True:
                statuses[(await self.answer(key, gateway)).status_code] += 1

        tasks = [asyncio.create_task(ask(number % 2)) for number in range(NUM_CLIENTS)]
        try:
            yield statuses
        finally:
            failed = [task for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert not failed

    async def more(self, statuses: Counter[int], count: int = 20) -> None:
        """Waits for `count` more answers."""
        wanted = statuses.total() + count

        async def is_so() -> bool:
            return statuses.total() >= wanted

        await until(is_so, "more answers")

    async def close(self) -> None:
        for process in self.processes:
            process.kill()
        for client in self.clients:
            await client.aclose()


@pytest.fixture
async def front(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[Front]:
    async with AsyncExitStack() as stack:
        addresses = [f"unix:{tmp_path}/scheduler-{number}.sock" for number in range(2)]
        for address in addresses:
            worker = FakeWorker(worker_info(vocab_size=400, max_model_len=512, num_blocks=512))
            await stack.enter_async_context(scheduler(address, worker))
        front = Front(tmp_path, redis_server, ",".join(addresses))
        for process in front.processes:
            process.start()
        stack.push_async_callback(front.close)
        await front.until_ready()
        yield front


async def test_gateways_share_keys_and_limits_whatever_happens_to_redis(
    front: Front, redis_server: RedisServer
) -> None:
    key = front.store.add(ApiKey(tenant=TEAM))
    small = front.store.add(ApiKey(tenant=SMALL))
    await front.until_statuses(key, 200)
    await front.assert_one_of_two_is_refused(small)

    async with front.load(key) as statuses:
        await front.more(statuses)
        redis_server.kill()
        await front.until_trust(trusted=False)
        await front.more(statuses)
        assert (await front.answer(small)).status_code == 200  # by the limits of a scheduler

        redis_server.start()
        await front.until_trust(trusted=True)
        await _until_keys(redis_server)
        await front.assert_one_of_two_is_refused(small)

        redis_server.run("FLUSHALL")
        await _until_keys(redis_server)
        await front.more(statuses)

        redis_server.pause()
        await front.until_trust(trusted=False)
        await front.more(statuses)
        redis_server.resume()
        await front.until_trust(trusted=True)

        redis_server.run("HSET", KEYS, "team", "garbage")
        redis_server.run("SET", limit_keys(TEAM)[1], "garbage")
        front.store.add(ApiKey(tenant=Tenant(name="other")))  # so that all are read
        await front.more(statuses)
    assert set(statuses) == {200}

    front.store.revoke("small")
    await front.until_statuses(small, 401)
    assert await front.statuses(key) == [200, 200]


async def _until_keys(server: RedisServer) -> None:
    async def are_there() -> bool:
        return int(server.run("HLEN", KEYS)) == 2

    await until(are_there, "the keys in Redis")
