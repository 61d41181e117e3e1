"""The circuit breaker: Redis is trusted while it answers in time, and no call waits otherwise."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from support.certificates import EXPIRED, LIFETIME, make_certificates, tls_config
from support.patience import PATIENCE_SECONDS
from support.redis_server import RedisServer, rediss_url
from taco_common.redis_link import RedisLink, shown_url
from taco_common.tls import Role
from taco_llm.certificates import issue
from taco_proto.config import RedisConfig
from taco_proto.errors import ConfigurationError

pytestmark = pytest.mark.process

SCRIPT = "return {ARGV[1], redis.call('GET', KEYS[1])}"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.005)


@asynccontextmanager
async def linked(config: RedisConfig) -> AsyncIterator[tuple[RedisLink, list[bool]]]:
    """A link that has been started, and one entry for each time that it began to trust."""
    begun: list[bool] = []
    link = RedisLink(config)
    link.on_trust(lambda: begun.append(True))
    link.start()
    try:
        yield link, begun
    finally:
        await link.close()


async def test_commands_go_together_and_a_wrong_one_fails_alone(redis_server: RedisServer) -> None:
    async with linked(redis_server.config) as (link, _):
        await until(lambda: link.trusted)
        replies = await link.run(("SET", "a", b"\xff"), ("LPUSH", "a", 1), ("GET", "a"), seconds=10)
        assert replies is not None
        assert replies[0] in (True, b"OK")
        assert isinstance(replies[1], ResponseError)
        assert replies[2] == b"\xff"
        replies = await link.run(("INCR", "n"), ("INCR", "n"), seconds=10, atomic=True)
        assert replies == [1, 2]
        assert link.trusted
        assert link.counts.num_failures == 0


async def test_a_killed_server_opens_the_breaker_and_is_found_again(
    redis_server: RedisServer,
) -> None:
    async with linked(redis_server.config) as (link, begun):
        await until(lambda: link.trusted)
        redis_server.kill()
        assert await link.run(("PING",), seconds=10) is None
        assert not link.trusted
        assert await link.run(("PING",), seconds=10) is None
        assert link.counts.num_failures == 1  # the second was not even tried
        redis_server.start()
        await until(lambda: link.trusted)
        assert len(begun) == 2


async def test_a_hanging_server_opens_the_breaker_in_time(redis_server: RedisServer) -> None:
    async with linked(redis_server.config) as (link, _):
        await until(lambda: link.trusted)
        redis_server.pause()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await link.run(("PING",)) is None
        assert not link.trusted
        redis_server.resume()
        await until(lambda: link.trusted)
        assert await link.run(("ECHO", "there"), seconds=10) == [b"there"]


async def test_a_busy_loop_is_not_held_against_redis(redis_server: RedisServer) -> None:
    async with linked(redis_server.config) as (link, _):
        await until(lambda: link.trusted)
        for _ in range(3):
            asked = asyncio.ensure_future(link.run(("ECHO", "there")))
            for _ in range(3):
                await asyncio.sleep(0)  # the command is under way
            time.sleep(2 * redis_server.config.timeout)  # noqa: ASYNC251 (that is the point)
            redis_server.run("PING")  # by now it has answered both
            assert await asked == [b"there"]
        assert link.counts.num_failures == 0


async def test_a_server_that_starts_later_is_found(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    async with linked(server.config) as (link, _):
        assert await link.run(("PING",)) is None
        with server:
            await until(lambda: link.trusted)


async def test_a_name_that_no_host_can_have_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with linked(RedisConfig(url="redis://redis..internal:6379")) as (link, _):
        await until(lambda: "waiting for Redis" in caplog.text)
        assert link._task is not None
        assert not link._task.done()


async def test_a_script_is_there_again_after_a_restart(redis_server: RedisServer) -> None:
    link = RedisLink(redis_server.config)
    script = link.add_script(SCRIPT)
    link.start()
    try:
        await until(lambda: link.trusted)
        redis_server.run("SCRIPT", "FLUSH")
        assert await link.run(("EVALSHA", script, 1, "k", "x"), seconds=10) is None
        await until(lambda: link.trusted)
        assert await link.run(("EVALSHA", script, 1, "k", "x"), seconds=10) == [[b"x", None]]
    finally:
        await link.close()


async def test_passwords_come_from_the_url_or_a_file_and_are_never_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "taco.redis")
    path = tmp_path / "password"
    path.write_text("wrong-one\n")
    with RedisServer(tmp_path, password="sesame-7") as server:
        async with linked(server.config) as (link, _):
            await until(lambda: link.trusted)
        async with linked(RedisConfig(url=server.url, password_file=str(path))) as (link, _):
            await until(lambda: "waiting for Redis" in caplog.text)
            assert not link.trusted
            path.write_text("sesame-7\n")  # read again at the next try
            await until(lambda: link.trusted)
    assert "sesame-7" not in caplog.text
    assert "wrong-one" not in caplog.text


async def test_tls_is_a_matter_of_the_url(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = make_certificates(tmp_path / "tls", Role.GATEWAY)
    issue(directory, Role.REDIS, LIFETIME, hosts=["127.0.0.1"])
    gateway = tls_config(directory, Role.GATEWAY)
    with RedisServer(tmp_path, tls=tls_config(directory, Role.REDIS)) as server:
        async with linked(RedisConfig(url=rediss_url(server.port, gateway))) as (link, _):
            await until(lambda: link.trusted)
            assert await link.run(("ECHO", "there"), seconds=10) == [b"there"]
        issue(directory, Role.GATEWAY, EXPIRED)
        other = make_certificates(tmp_path / "other", Role.GATEWAY)
        refused = {
            "an expired certificate": rediss_url(server.port, gateway),
            "another authority": rediss_url(server.port, tls_config(other, Role.GATEWAY)),
            "plaintext": f"redis://127.0.0.1:{server.port}",
        }
        for kind, url in refused.items():
            caplog.clear()
            async with linked(RedisConfig(url=url)) as (_, begun):
                await until(lambda: "waiting for Redis" in caplog.text)
                assert not begun, kind
        async with linked(RedisConfig(url=rediss_url(server.port, gateway))) as (link, _):
            caplog.clear()
            await until(lambda: "waiting for Redis" in caplog.text)
            issue(directory, Role.GATEWAY, LIFETIME)  # read again at the next try
            await until(lambda: link.trusted)


@pytest.mark.parametrize("option", ["db=many", "no_such_option=1", "socket_timeout=soon"])
def test_an_unknown_option_is_reported_without_the_password(option: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RedisLink(RedisConfig(url=f"redis://user:sesame-7@localhost:1/0?{option}"))
    assert "redis://localhost:1/0" in str(caught.value)
    assert "sesame-7" not in str(caught.value)


def test_a_password_file_must_hold_a_password(tmp_path: Path) -> None:
    path = tmp_path / "password"
    config = RedisConfig(url="redis://localhost", password_file=str(path))
    with pytest.raises(ConfigurationError, match="cannot read"):
        RedisLink(config)
    path.write_text("\n")
    with pytest.raises(ConfigurationError, match="holds no password"):
        RedisLink(config)


def test_what_is_shown_of_a_url_and_a_configuration() -> None:
    assert shown_url("rediss://me:sesame-7@host:6380/2?x=sesame-7") == "rediss://host:6380/2"
    assert shown_url("unix:///run/redis.sock?password=sesame-7") == "unix:///run/redis.sock"
    config = RedisConfig(url="redis://:sesame-7@host")
    assert "sesame-7" not in repr(replace(config, password_file="file"))
