"""API keys in Redis: the commands that change them, and faults of Redis."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.gateway_app import MODEL, App, AppMaker
from support.patience import until
from support.redis_server import RedisServer
from support.scripted_engine import replay
from taco_gateway.api_keys.key_options import KeyOptionError, owner_entry, read_owner
from taco_gateway.api_keys.key_ring import ApiKey, key_hash
from taco_gateway.api_keys.redis_key_store import (
    KEYS,
    SECRET,
    VERSION,
    RedisKeyStore,
    decode_record,
)
from taco_gateway.redis_state import RedisState
from taco_llm.cli.main import main
from taco_proto.errors import ConfigurationError
from taco_proto.requests import LOW_PRIORITY, Tenant

pytestmark = pytest.mark.process

LIMITS = st.integers(0, 2**31 - 1)


@dataclass(frozen=True)
class Shop:
    """A gateway with keys in Redis, and the command that changes them."""

    app: App
    redis_state: RedisState
    command: "Command"

    async def status(self, key: str) -> int:
        headers = {"authorization": f"Bearer {key}"}
        return (await self.app.http.get("/v1/models", headers=headers)).status_code

    async def until_status(self, key: str, status: int) -> None:
        async def is_so() -> bool:
            return await self.status(key) == status

        await until(is_so, f"status {status}")


Command = Callable[..., str]


@pytest.fixture
def command(redis_server: RedisServer, capsys: pytest.CaptureFixture[str]) -> Command:
    """`taco_llm keys …`; gives what it prints, or the error."""

    def run(*arguments: str) -> str:
        code = main(["keys", *arguments, "--redis-url", redis_server.url])
        out, err = capsys.readouterr()
        assert code == (2 if err else 0)
        return (err or out).rstrip("\n")

    return run


@pytest.fixture
def open_shop(
    make_app: AppMaker,
    redis_server: RedisServer,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[], Any]:
    monkeypatch.setattr("taco_gateway.api_keys.redis_key_sync.POLL_SECONDS", 0.02)
    config = replace(redis_server.config, timeout=10.0)

    @asynccontextmanager
    async def make() -> AsyncIterator[Shop]:
        redis_state = RedisState(config, with_keys=True)
        app = make_app(replay([5]), keys=redis_state.key_ring)
        redis_state.export_metrics(app.gateway.metrics, MODEL)
        async with redis_state.running():
            yield Shop(app, redis_state, command)

    return make


# ------------------------------------------------------------------ the command


def test_keys_are_added_listed_and_revoked(command: Command, redis_server: RedisServer) -> None:
    limits = ("--max-requests-per-minute", "60", "--models", "a", "b", "--priority", "low")
    first = command("add", "team", "--weight", "2.5", *limits)
    second = command("add", "team", "--another")
    assert first.startswith("sk-")
    assert len({first, second}) == 2
    (line,) = command("list").splitlines()
    name, keys, *options = line.split("\t")
    assert name == "team"
    assert options == [
        *("weight=2.5", "max_requests_per_minute=60", "models=['a', 'b']", "priority=low"),
    ]
    ids = keys.removeprefix("keys=").split(",")
    assert command("revoke", "team", "--key-id", ids[0]) == ""
    assert command("list").split("\t")[1] == f"keys={ids[1]}"
    assert "has no key" in command("revoke", "team", "--key-id", ids[0])
    assert command("revoke", "team") == ""
    assert command("list") == ""
    assert redis_server.run("HLEN", KEYS) == 0


def test_invalid_commands_are_rejected(command: Command) -> None:
    command("add", "team")
    assert "the owner 'team' exists already" in command("add", "team")
    assert "there is no owner 'absent'" in command("add", "absent", "--another")
    assert "there is no owner 'absent'" in command("revoke", "absent")
    assert "does not change the owner" in command("add", "team", "--another", "--weight", "3")
    assert "weight must be above 0" in command("add", "x", "--weight", "0")
    assert "max_tokens_per_minute must be an integer" in command(
        "add", "x", "--max-tokens-per-minute", "0"
    )
    assert command("list").startswith("team\t")


def test_an_imported_key_file_replaces_its_owners(
    command: Command, redis_server: RedisServer, tmp_path: Path
) -> None:
    command("add", "team")
    path = tmp_path / "keys.json"
    entries = [{"name": "team", "key": ["old", "new"]}, {"name": "b", "key": "x", "weight": 3}]
    path.write_text(json.dumps(entries))
    assert command("import", str(path)) == "imported the keys of 2 owners"
    records = RedisKeyStore(redis_server.config).records()
    assert {name: len(r.digests) for name, r in records.items() if not isinstance(r, str)} == {
        "b": 1,
        "team": 2,
    }


def test_redis_holds_no_key_in_clear(command: Command, redis_server: RedisServer) -> None:
    key = command("add", "team").encode()
    for value in (*redis_server.run("HGETALL", KEYS).values(), redis_server.run("GET", SECRET)):
        assert key not in value
        assert key.removeprefix(b"sk-") not in value


def test_an_invalid_record_is_listed_and_can_be_revoked(
    command: Command, redis_server: RedisServer
) -> None:
    command("add", "team")
    redis_server.run("HSET", KEYS, "team", "garbage")
    assert command("list") == "team\tinvalid: it is not JSON"
    assert "the record of 'team' in Redis" in command("add", "team", "--another")
    assert command("revoke", "team") == ""
    assert command("list") == ""


def test_redis_that_does_not_answer_or_holds_another_type(
    command: Command, redis_server: RedisServer
) -> None:
    redis_server.run("SET", SECRET, "short")
    assert f"{SECRET} in Redis is invalid" in command("add", "team")
    redis_server.run("DEL", SECRET)
    redis_server.run("SET", KEYS, "x")
    assert "Redis: WRONGTYPE" in command("add", "team")
    redis_server.kill()
    assert "Redis: " in command("list")


@given(
    st.builds(
        ApiKey,
        tenant=st.builds(
            Tenant,
            name=st.text(st.characters(blacklist_categories=["Cc", "Cs"]), min_size=1, max_size=20),
            weight=st.floats(0, 1e9, exclude_min=True),
            max_requests_per_minute=LIMITS,
            max_tokens_per_minute=LIMITS,
            max_concurrent_requests=LIMITS,
        ),
        models=st.none() | st.frozensets(st.text(), min_size=1),
        priority=st.integers(-1000, 1000) | st.just(LOW_PRIORITY),
    )
)
def test_an_owner_is_written_and_read(owner: ApiKey) -> None:
    assert read_owner(json.loads(json.dumps(owner_entry(owner)))) == owner


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "must be a mapping"),
        (b'{"name": "b", "digests": ["x"]}', "differs from the name"),
        (b'{"name": "a"}', "digests must be a list"),
        (b'{"name": "a", "digests": ["sha256:00"]}', "must each be hmac-sha256: and 64"),
        (b'{"name": "a", "digests": [7]}', "must each be hmac-sha256: and 64"),
        (b'{"name": "a", "key": "secret"}', "'key' is not an option"),
        (b'{"name": "a", "weight": -1}', "weight must be above 0"),
    ],
)
def test_bad_records(data: bytes, words: str) -> None:
    with pytest.raises(KeyOptionError) as raised:
        decode_record(b"a", data)
    assert words in str(raised.value)


# ------------------------------------------------------------------ the gateway


async def test_a_gateway_follows_changes_in_redis(
    open_shop: Any, command: Command, tmp_path: Path
) -> None:
    async with open_shop() as shop:
        await shop.until_status("any", 401)
        key = shop.command("add", "team", "--weight", "2")
        await shop.until_status(key, 200)
        found = shop.app.gateway.keys.find(key.encode())
        assert found is not None
        assert found.tenant == Tenant(name="team", weight=2.0)
        path = tmp_path / "keys.json"
        path.write_text('[{"name": "other", "key": "imported"}]')
        shop.command("import", str(path))
        await shop.until_status("imported", 200)
        shop.command("revoke", "team")
        await shop.until_status(key, 401)
        assert await shop.status("imported") == 200
        metrics = (await shop.app.http.get("/metrics")).text
        assert f'taco:api_key_owners{{model_name="{MODEL}"}} 1.0' in metrics
        assert f'taco:redis_trusted{{model_name="{MODEL}"}} 1.0' in metrics


async def test_before_redis_has_answered_requests_are_rejected(
    open_shop: Any, command: Command, redis_server: RedisServer
) -> None:
    redis_server.kill()
    async with open_shop() as shop:
        assert not shop.app.gateway.ready
        assert await shop.status("any") == 503
        redis_server.start()
        key = shop.command("add", "team")
        await shop.until_status(key, 200)
        assert shop.app.gateway.ready


async def test_keys_stay_valid_when_redis_is_killed_and_are_restored(
    open_shop: Any, redis_server: RedisServer
) -> None:
    async with open_shop() as shop:
        key = shop.command("add", "team")
        await shop.until_status(key, 200)
        redis_server.kill()

        async def is_noticed() -> bool:
            return not shop.redis_state.link.trusted

        await until(is_noticed, "the death of Redis")
        assert await shop.status(key) == 200
        redis_server.start()  # with empty memory
        await _until_known(redis_server, "team")
        assert await shop.status(key) == 200
        shop.command("revoke", "team")
        await shop.until_status(key, 401)


async def test_keys_are_restored_after_a_flush_and_another_gateway_finds_them(
    open_shop: Any, redis_server: RedisServer
) -> None:
    async with open_shop() as shop:
        key = shop.command("add", "team")
        await shop.until_status(key, 200)
        redis_server.run("FLUSHALL")
        assert await shop.status(key) == 200
        await _until_known(redis_server, "team")
        async with open_shop() as other:
            await other.until_status(key, 200)
        shop.command("add", "team", "--another")
        assert await shop.status(key) == 200


async def test_a_gateway_out_of_sync_for_long_restores_no_keys(
    open_shop: Any, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key may have been revoked in the meantime."""
    monkeypatch.setattr("taco_gateway.api_keys.redis_key_sync.RESTORE_SECONDS", 0.0)
    async with open_shop() as shop:
        key = shop.command("add", "team")
        await shop.until_status(key, 200)
        redis_server.run("FLUSHALL")
        fresh = shop.command("add", "new")
        await shop.until_status(fresh, 200)
        assert await shop.status(key) == 401


@pytest.mark.parametrize("garbage", ["a record", "all records", "the secret", "the version"])
async def test_invalid_data_in_redis_locks_no_client_out(
    open_shop: Any, redis_server: RedisServer, caplog: pytest.LogCaptureFixture, garbage: str
) -> None:
    async with open_shop() as shop:
        key = shop.command("add", "team")
        shop.command("add", "other")
        await shop.until_status(key, 200)
        match garbage:
            case "a record":
                redis_server.run("HSET", KEYS, "team", b"\xff\x00")
            case "all records":
                redis_server.run("SET", KEYS, "x")
            case "the secret":
                redis_server.run("SET", SECRET, "short")
        if garbage == "the version":
            redis_server.run("DEL", VERSION)
            redis_server.run("LPUSH", VERSION, "x")
        else:
            redis_server.run("SET", VERSION, "another")

        async def is_noticed() -> bool:
            return " invalid" in caplog.text

        await until(is_noticed, "garbage")
        assert await shop.status(key) == 200


async def _until_known(server: RedisServer, name: str) -> None:
    async def is_so() -> bool:
        return bool(server.run("HEXISTS", KEYS, name))

    await until(is_so, f"a record of {name}")


def test_a_key_has_one_owner(redis_server: RedisServer) -> None:
    store = RedisKeyStore(redis_server.config)
    hashed = key_hash(b"a key")
    store.put([(hashed, ApiKey(tenant=Tenant(name="before")))])
    with pytest.raises(ConfigurationError, match="'after' belongs to 'before' already"):
        store.put([(hashed, ApiKey(tenant=Tenant(name="after")))])
    assert [*store.records()] == ["before"]
    store.revoke("before")
    store.put([(hashed, ApiKey(tenant=Tenant(name="after")))])
    assert [*store.records()] == ["after"]
