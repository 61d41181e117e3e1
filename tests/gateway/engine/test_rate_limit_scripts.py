"""What Redis counts of a minute against what a scheduler counts, with a clock of our own."""

import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.redis_server import RedisServer
from taco_gateway.engine.rate_limit_scripts import ADMIT, REACHED, SETTLE, limit_keys
from taco_proto.limits import Limit
from taco_proto.requests import Tenant
from taco_scheduler.admission.rate_limits import TokenBucket

pytestmark = pytest.mark.process

START_MS = 1_700_000_000_000
# Of rounding: the scripts let in what is a millisecond early.
CLOSE_MS = 2.0
STEPS = st.lists(
    st.tuples(st.integers(0, 30_000), st.integers(1, 150), st.integers(-50, 200)), max_size=12
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


class Clocked:
    """The scripts, at times that the test names.

    Args:
        expires: keys go by Redis' own clock.
    """

    def __init__(self, server: RedisServer, *, expires: bool = False) -> None:
        self._server = server
        self._expires = expires
        self._now = START_MS
        server.run("FLUSHALL")

    def at(self, now_ms: int) -> "Clocked":
        self._now = now_ms
        return self

    def admit(self, tenant: Tenant, num_tokens: int, lease: str = "l") -> tuple[Limit | None, int]:
        """The limit that is reached, and after how many milliseconds to come again."""
        limits = [limit.of(tenant) for limit in (Limit.REQUESTS, Limit.TOKENS, Limit.CONCURRENT)]
        number, wait = self._run(ADMIT, tenant, *limits, num_tokens, lease, 1000)
        return REACHED[number], wait

    def charge(self, tenant: Tenant, num_requests: int, num_tokens: int) -> None:
        limits = Limit.REQUESTS.of(tenant), Limit.TOKENS.of(tenant)
        self._run(SETTLE, tenant, limits[0], num_requests, limits[1], num_tokens, 1000, 0)

    def _run(self, script: str, tenant: Tenant, *arguments: str | int) -> list[int]:
        clock = f"{{ {self._now // 1000}, {self._now % 1000 * 1000} }}"
        replaced = _without(script, "redis.call('TIME')", clock)
        if not self._expires:
            replaced = _without(replaced, ", 'PX', math.ceil(at - now)")
            replaced = _without(replaced, "redis.call('PEXPIRE', key, length)")
        reply: list[int] = self._server.run(*("EVAL", replaced, 3, *limit_keys(tenant), *arguments))
        return reply


def _without(script: str, text: str, instead: str = "") -> str:
    assert text in script
    return script.replace(text, instead)


@given(limit=st.sampled_from([1, 7, 60, 100, 10_000]), steps=STEPS)
def test_redis_and_a_scheduler_count_alike(
    server: RedisServer, limit: int, steps: list[tuple[int, int, int]]
) -> None:
    """Each step: milliseconds that pass, prompt tokens and generated tokens of one request."""
    clocked, tenant = Clocked(server), Tenant(name="a", max_tokens_per_minute=limit)
    bucket, now = TokenBucket(), START_MS
    for elapsed, prompt, answer in steps:
        now += elapsed
        bucket.refill(limit, now / 1000)
        wait_ms = bucket.seconds_until(prompt, limit) * 1000
        reached, told_ms = clocked.at(now).admit(tenant, prompt)
        if wait_ms > CLOSE_MS:
            assert reached is Limit.TOKENS
            assert math.isclose(told_ms, wait_ms, abs_tol=CLOSE_MS)
        else:
            assert reached is None
            clocked.charge(tenant, 0, answer)
            bucket.take(prompt + answer)
            # A refund makes no more than a minute's worth, at once and not with the next request.
            bucket.refill(limit, now / 1000)


def test_the_first_limit_that_is_reached_is_reported(server: RedisServer) -> None:
    clocked = Clocked(server)
    tenant = Tenant(
        name="a", max_requests_per_minute=2, max_tokens_per_minute=10, max_concurrent_requests=2
    )
    assert clocked.admit(tenant, 10, "x") == (None, 0)
    assert clocked.admit(tenant, 5, "y") == (Limit.TOKENS, 30_000)
    assert clocked.admit(tenant, 0, "y") == (None, 0)
    assert clocked.admit(tenant, 5, "z") == (Limit.CONCURRENT, 0)
    later = clocked.at(START_MS + 1001)  # the leases have ended
    assert later.admit(tenant, 5, "z") == (Limit.REQUESTS, 28_999)
    later.charge(tenant, -1, -10)
    assert later.admit(tenant, 5, "z") == (None, 0)


@pytest.mark.parametrize("step_ms", [30_000, 3_600_000])
def test_a_clock_that_is_set_back_locks_no_tenant_out(server: RedisServer, step_ms: int) -> None:
    clocked = Clocked(server)
    tenant = Tenant(
        name="a", max_requests_per_minute=60, max_tokens_per_minute=60, max_concurrent_requests=1
    )
    assert clocked.admit(tenant, 60, "x") == (None, 0)
    later = clocked.at(START_MS - step_ms)
    assert later.admit(tenant, 1, "y") == (Limit.CONCURRENT, 0)
    later = clocked.at(START_MS - step_ms + 1001)  # the lease of a killed gateway has ended
    assert later.admit(tenant, 1, "y") == (Limit.TOKENS, 1000)
    later = clocked.at(START_MS - step_ms + 2001)
    assert later.admit(tenant, 1, "y") == (None, 0)
    assert later.admit(tenant, 1, "y") == (Limit.CONCURRENT, 0)
    later = clocked.at(START_MS - step_ms + 33_000)
    assert later.admit(tenant, 30, "y") == (None, 0)


def test_a_key_goes_when_nothing_is_in_use_any_more(server: RedisServer) -> None:
    clocked = Clocked(server, expires=True)
    tenant = Tenant(name="a", max_tokens_per_minute=60)
    clocked.admit(tenant, 30)
    assert server.run("PTTL", limit_keys(tenant)[1]) <= 30_000
    clocked.charge(tenant, 0, -30)
    assert server.run("EXISTS", limit_keys(tenant)[1]) == 0
