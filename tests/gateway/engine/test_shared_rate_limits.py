"""Limits over several gateways, counted in Redis; and what holds while it is away."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from support.patience import until
from support.redis_server import RedisServer
from support.scripted_engine import Hold, Script, ScriptedEngine, Step, replay
from taco_gateway.engine.engine_client import EngineError, UpdateStream
from taco_gateway.engine.rate_limit_scripts import limit_keys
from taco_gateway.engine.rate_limited_client import RateLimitedClient
from taco_gateway.redis_state import RedisState
from taco_proto.config import RedisConfig
from taco_proto.limits import Limit
from taco_proto.requests import ANYBODY, GenerateRequest, Tenant
from taco_proto.sampling_params import SamplingParams

pytestmark = pytest.mark.process


@dataclass(frozen=True)
class Gateway:
    """As far as limits go."""

    redis_state: RedisState
    engine: ScriptedEngine
    client: RateLimitedClient

    def begin(
        self, tenant: Tenant, *, prompt: int = 4, n: int = 1, num_beams: int = 0
    ) -> UpdateStream:
        sampling = SamplingParams(seed=1, max_tokens=100, n=n)
        if num_beams:
            sampling = sampling.with_updates(use_beam_search=True, best_of=num_beams)
        return self.client.generate(
            GenerateRequest(
                handle=0,
                request_id="r",
                token_ids=np.ones(prompt, "<i4").tobytes(),
                sampling=sampling,
                tenant=tenant,
            )
        )

    async def run(self, tenant: Tenant, *, prompt: int = 4) -> int:
        """The number of tokens that it got."""
        stream = self.begin(tenant, prompt=prompt)
        try:
            return sum([len(update.token_ids) async for update in stream])
        finally:
            stream.close()

    async def refused(self, tenant: Tenant, *, prompt: int = 4) -> EngineError:
        with pytest.raises(EngineError) as raised:
            await self.run(tenant, prompt=prompt)
        assert raised.value.code == 429
        return raised.value


@asynccontextmanager
async def gateways(
    config: RedisConfig, *scripts: Script, patience: float = 30.0
) -> AsyncIterator[list[Gateway]]:
    """One for each script, linked to Redis."""
    async with AsyncExitStack() as stack:
        made = []
        for script in scripts:
            redis_state = RedisState(replace(config, timeout=patience), with_keys=False)
            await stack.enter_async_context(redis_state.running())
            engine = ScriptedEngine(script)
            made.append(Gateway(redis_state, engine, RateLimitedClient(engine, redis_state.limits)))
        for gateway in made:
            await until_trust(gateway)
        yield made


async def until_trust(gateway: Gateway, *, lost: bool = False) -> None:
    async def is_so() -> bool:
        return gateway.redis_state.link.trusted is not lost

    await until(is_so, "trust in Redis")


def holding(hold: Hold) -> Script:
    """Answers with two tokens, and waits before the second."""

    def script(request: GenerateRequest) -> Iterator[Step]:
        first, second = replay([5, 6])(request)
        yield first
        yield hold
        yield second

    return script


def leases(server: RedisServer, tenant: Tenant) -> int:
    return int(server.run("ZCARD", limit_keys(tenant)[2]))


# ---------------------------------------------------------------------- limits


async def test_requests_a_minute_hold_over_all_gateways(redis_server: RedisServer) -> None:
    tenant = Tenant(name="a", max_requests_per_minute=2)
    async with gateways(redis_server.config, replay([5]), replay([5])) as (one, other):
        for gateway in (one, other):
            assert await gateway.run(tenant) == 1
        for gateway in (one, other):
            error = await gateway.refused(tenant)
            assert str(error) == "the limit of 2 requests a minute is reached"
            assert 0 < error.retry_after <= 30
            assert gateway.redis_state.limits.num_rejected == {Limit.REQUESTS: 1}
        assert await other.run(Tenant(name="b", max_requests_per_minute=2)) == 1
        error = await one.refused(replace(tenant, max_requests_per_minute=1))
        assert 30 < error.retry_after <= 60, "a new limit holds from now on"


async def test_tokens_a_minute_are_those_of_prompts_and_answers(redis_server: RedisServer) -> None:
    tenant = Tenant(name="a", max_tokens_per_minute=60)
    async with gateways(redis_server.config, replay([5] * 6), replay([5] * 6)) as (one, other):
        assert await one.run(tenant, prompt=24) == 6
        assert await other.run(tenant, prompt=24) == 6
        error = await one.refused(tenant, prompt=40)  # 60 are used; one comes back each second
        assert str(error) == "the limit of 60 tokens a minute is reached"
        assert 0 < error.retry_after <= 40
        error = await one.refused(tenant, prompt=61)
        assert "61 tokens is above the limit of 60" in str(error)
        assert error.retry_after == 0


async def test_all_beams_count(redis_server: RedisServer) -> None:
    tenant = Tenant(name="a", max_tokens_per_minute=600)
    async with gateways(redis_server.config, replay([5] * 30)) as (gateway,):
        stream = gateway.begin(tenant, prompt=4, n=2, num_beams=16)
        assert sum([len(update.token_ids) async for update in stream]) == 60
        error = await gateway.refused(tenant, prompt=140)  # 484 of 600 are used
        assert 0 < error.retry_after <= 3


async def test_answers_may_leave_a_debt(redis_server: RedisServer) -> None:
    tenant = Tenant(name="a", max_tokens_per_minute=60)
    async with gateways(redis_server.config, replay([5] * 90)) as (gateway,):
        assert await gateway.run(tenant, prompt=10) == 90
        assert 1 < (await gateway.refused(tenant, prompt=1)).retry_after <= 41


async def test_a_long_answer_is_charged_as_it_comes(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taco_gateway.engine.shared_rate_limits.RENEW_SECONDS", 0.01)
    tenant = Tenant(name="a", max_tokens_per_minute=2)
    async with gateways(redis_server.config, holding(Hold())) as (gateway,):
        stream = gateway.begin(tenant, prompt=1)
        await anext(stream)

        async def is_charged() -> bool:
            return await free_after(redis_server, tenant) > 30  # more than the prompt

        await until(is_charged, "the charge")
        stream.close()


async def free_after(server: RedisServer, tenant: Tenant) -> float:
    """Seconds after which nothing of the tenant's tokens is in use."""
    return float(await asyncio.to_thread(server.run, "PTTL", limit_keys(tenant)[1])) / 1000


async def test_requests_at_a_time_hold_over_all_gateways(redis_server: RedisServer) -> None:
    tenant = Tenant(name="a", max_concurrent_requests=2)
    hold = Hold()
    async with gateways(redis_server.config, holding(hold), replay([5])) as (one, other):
        running = [one.begin(tenant), one.begin(tenant)]
        for stream in running:
            await anext(stream)
        error = await other.refused(tenant)
        assert (str(error), error.retry_after) == (
            "the limit of 2 requests at a time is reached",
            1,
        )
        hold.release()
        await anext(running[0])  # its last token: there is room before the client hears of it
        assert await one.run(tenant) == 2
        running[1].close()

        async def is_free() -> bool:
            return leases(redis_server, tenant) == 0

        await until(is_free, "an empty set of leases")
        assert await other.run(tenant) == 1


async def test_a_request_of_several_sequences_is_one(redis_server: RedisServer) -> None:
    tenant = Tenant(name="a", max_concurrent_requests=1, max_requests_per_minute=2)
    async with gateways(redis_server.config, replay([5, 6])) as (gateway,):
        stream = gateway.begin(tenant, n=3)
        for _ in range(5):
            await anext(stream)
        await gateway.refused(tenant)
        stream.cancel(2)
        assert await gateway.run(tenant) == 2
        stream.close()


async def test_leases_of_a_gateway_that_died_expire(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taco_gateway.engine.shared_rate_limits.LEASE_MS", 300)
    tenant = Tenant(name="a", max_concurrent_requests=1)
    async with gateways(redis_server.config, replay([5])) as (survivor,):
        async with gateways(redis_server.config, holding(Hold())) as (victim,):
            await anext(victim.begin(tenant))
        # No command released the request's lease, and no gateway renews it.

        async def is_free() -> bool:
            try:
                return await survivor.run(tenant) == 1
            except EngineError:
                return False

        await until(is_free, "room")


async def test_a_request_cancelled_before_admission_leaves_no_lease(
    redis_server: RedisServer,
) -> None:
    tenant = Tenant(name="a", max_concurrent_requests=1)
    async with gateways(redis_server.config, replay([5])) as (gateway,):
        asked = [asyncio.ensure_future(anext(gateway.begin(tenant))) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        assert await gateway.run(tenant) == 1


# ------------------------------------------------------------- the scheduler's


async def test_a_request_admitted_by_redis_is_not_limited_again(redis_server: RedisServer) -> None:
    tenant = Tenant(name="a", weight=2.0, max_requests_per_minute=9, max_concurrent_requests=9)
    async with gateways(redis_server.config, replay([5])) as (gateway,):
        await gateway.run(tenant)
        await gateway.run(ANYBODY)
        await gateway.run(Tenant(name="free"))
        limited, anybody, free = gateway.engine.requests
        assert limited.tenant == Tenant(name="a", weight=2.0)
        assert (anybody.tenant, free.tenant) == (ANYBODY, Tenant(name="free"))
        assert gateway.redis_state.link.counts.num_batches <= 2, (
            "a tenant without limits sends no command"
        )


@pytest.mark.parametrize("code", [429, 503])
async def test_what_the_scheduler_refuses_costs_nothing(
    redis_server: RedisServer, code: int
) -> None:
    tenant = Tenant(
        name="a", max_requests_per_minute=1, max_tokens_per_minute=4, max_concurrent_requests=1
    )
    refusals = iter([EngineError(code, "the queue is full", 7)])

    def script(request: GenerateRequest) -> Iterator[Step]:
        yield from refusals
        yield from replay([5])(request)

    async with gateways(redis_server.config, script) as (gateway,):
        with pytest.raises(EngineError, match="the queue is full"):
            await gateway.run(tenant)
        assert await gateway.run(tenant) == 1
        await gateway.refused(tenant)


# --------------------------------------------------------------------- faults


async def test_while_redis_is_dead_the_schedulers_limits_hold(redis_server: RedisServer) -> None:
    tenant = Tenant(name="a", max_requests_per_minute=1, max_concurrent_requests=5)
    async with gateways(redis_server.config, replay([5])) as (gateway,):
        assert await gateway.run(tenant) == 1
        redis_server.kill()
        for _ in range(3):
            assert await gateway.run(tenant) == 1  # this scheduler rejects no request
        assert [r.tenant for r in gateway.engine.requests[1:]] == [tenant] * 3
        assert gateway.redis_state.limits.num_local == 3
        redis_server.start()
        await until_trust(gateway)
        assert await gateway.run(tenant) == 1
        await gateway.refused(tenant)


async def test_no_request_waits_for_a_hanging_redis(redis_server: RedisServer) -> None:
    tenant = Tenant(name="a", max_requests_per_minute=1)
    async with gateways(redis_server.config, replay([5]), patience=0.05) as (gateway,):
        counts = gateway.redis_state.link.counts
        before = counts.num_failures  # of the start, on a busy machine
        redis_server.pause()
        assert sum(await asyncio.gather(*(gateway.run(tenant) for _ in range(20)))) == 20
        assert {r.tenant for r in gateway.engine.requests} == {tenant}
        assert counts.num_failures == before + 1, "all of them waited together"
        redis_server.resume()
        await until_trust(gateway)


async def test_a_wrong_password_makes_limits_local(tmp_path: Path) -> None:
    tenant = Tenant(name="a", max_requests_per_minute=1)
    with RedisServer(tmp_path, password="sesame-7") as server:
        redis_state = RedisState(RedisConfig(url=server.url), with_keys=True)
        async with redis_state.running():
            engine = ScriptedEngine(replay([5]))
            gateway = Gateway(redis_state, engine, RateLimitedClient(engine, redis_state.limits))
            assert [await gateway.run(tenant), await gateway.run(tenant)] == [1, 1]
            assert {r.tenant for r in engine.requests} == {tenant}
            assert redis_state.key_ring is not None
            assert not redis_state.key_ring.is_loaded


async def test_requests_that_end_while_redis_hangs_are_not_counted_afterwards(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taco_gateway.engine.shared_rate_limits.LEASE_MS", 10**9)
    tenant = Tenant(name="a", max_concurrent_requests=1)
    hold = Hold()
    async with gateways(redis_server.config, holding(hold), patience=0.5) as (gateway,):
        stream = gateway.begin(tenant)
        await anext(stream)
        redis_server.pause()
        hold.release()
        await anext(stream)
        assert await gateway.run(tenant) == 2, "locally"
        await until_trust(gateway, lost=True)
        redis_server.resume()

        async def is_free() -> bool:
            return leases(redis_server, tenant) == 0

        await until(is_free, "the end of the lease")


async def test_running_requests_are_known_again_after_a_flush_and_a_restart(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taco_gateway.engine.shared_rate_limits.RENEW_SECONDS", 0.02)
    tenant = Tenant(name="a", max_concurrent_requests=2)
    async with gateways(redis_server.config, holding(Hold())) as (gateway,):
        streams = [gateway.begin(tenant), gateway.begin(tenant)]
        for stream in streams:
            await anext(stream)

        async def are_known() -> bool:
            return leases(redis_server, tenant) == 2

        redis_server.run("FLUSHALL")
        await until(are_known, "leases after a flush")
        await gateway.refused(tenant)
        redis_server.kill()
        redis_server.start()
        await until(are_known, "leases after a restart")
        await gateway.refused(tenant)
        for stream in streams:
            stream.close()


async def test_garbage_in_a_limit_makes_it_a_local_one(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    tenant = Tenant(name="a", max_requests_per_minute=1, max_concurrent_requests=3)
    requests, _, running = limit_keys(tenant)
    async with gateways(redis_server.config, replay([5])) as (gateway,):
        redis_server.run("SET", requests, "many")
        assert await gateway.run(tenant) == 1, "a value that is no number counts as 0"
        await gateway.refused(tenant)
        redis_server.run("DEL", running)
        redis_server.run("SET", running, "x")
        assert await gateway.run(tenant) == 1
        assert gateway.engine.requests[-1].tenant == tenant
        assert gateway.redis_state.link.trusted
        assert caplog.text.count("a rate limit in Redis is invalid") == 1
