"""The key file: its options, and the permissions of its owners."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.gateway_app import MODEL, App, AppMaker
from support.scripted_engine import replay
from taco_gateway.api_keys.key_file import read_key_file
from taco_gateway.api_keys.key_ring import KeyRing
from taco_proto.errors import ConfigurationError
from taco_proto.requests import LOW_PRIORITY, Tenant

HELLO = [{"role": "user", "content": "hello"}]
ENTRIES: list[dict[str, Any]] = [
    {
        "name": "team-a",
        "key": ["old-a", "new-a"],
        "weight": 2.5,
        "max_requests_per_minute": 60,
        "max_tokens_per_minute": 100_000,
        "max_concurrent_requests": 8,
    },
    {"name": "team-b", "key_hash": f"sha256:{hashlib.sha256(b'secret-b').hexdigest()}"},
    {"name": "batch", "key": "secret-c", "priority": "low", "models": ["alias"]},
]


def write(path: Path, entries: object) -> str:
    dump = json.dumps if path.suffix == ".json" else yaml.safe_dump
    path.write_text(dump(entries))
    return str(path)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def chat(app: App, key: str, **body: Any) -> int:
    response = await app.http.post(
        "/v1/chat/completions", json={"messages": HELLO, **body}, headers=bearer(key)
    )
    return response.status_code


# ------------------------------------------------------------------- the file


@pytest.mark.parametrize("name", ["keys.json", "keys.yaml"])
def test_options_of_a_key_file(tmp_path: Path, name: str) -> None:
    ring = KeyRing(read_key_file(write(tmp_path / name, ENTRIES)))
    a = ring.find(b"new-a")
    assert a is not None
    assert a == ring.find(b"old-a")
    assert a.tenant == Tenant(
        name="team-a",
        weight=2.5,
        max_requests_per_minute=60,
        max_tokens_per_minute=100_000,
        max_concurrent_requests=8,
    )
    b, c = ring.find(b"secret-b"), ring.find(b"secret-c")
    assert b is not None
    assert c is not None
    assert b.tenant == Tenant(name="team-b")
    assert [key.clamp_priority(-5) for key in (a, b, c)] == [0, 0, LOW_PRIORITY]
    assert b.clamp_priority(7) == 7
    assert [key.may_use(MODEL) for key in (a, b, c)] == [True, True, False]
    assert ring.find(b"secret") is None


SECRET = "very-secret"


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([], "a list of keys, at least one"),
        ({"name": "a", "key": SECRET}, "a list of keys"),
        (["a"], "entry 1: it must be a mapping"),
        ([{"key": SECRET}], "entry 1: name must be a string"),
        ([{"name": "a\nb", "key": SECRET}], "name must be a string"),
        ([{"name": "a\ud800", "key": SECRET}], "name must be a string"),
        ([{"name": "a"}], "key or key_hash is required"),
        ([{"name": "a", "key": "k", "key_hash": "h"}], "one of the two"),
        ([{"name": "a", "key": 12345}], "key must be a string"),
        ([{"name": "a", "key": ""}], "key must be a string"),
        ([{"name": "a", "key": []}], "key must be a string"),
        ([{"name": "a", "key_hash": SECRET}], "key_hash must be sha256: and 64"),
        (
            [{"name": "a", "key": SECRET, "wait": 2}],
            "'wait' is not an option; the options are name, key",
        ),
        ([{"name": "a", "key": SECRET, "weight": 0}], "weight must be above 0"),
        ([{"name": "a", "key": SECRET, "weight": True}], "weight must be above 0"),
        ([{"name": "a", "key": SECRET, "weight": float("inf")}], "weight must be above 0"),
        (
            [{"name": "a", "key": SECRET, "max_requests_per_minute": 0}],
            "max_requests_per_minute must be an integer, 1 to",
        ),
        (
            [{"name": "a", "key": SECRET, "max_tokens_per_minute": 1.5}],
            "max_tokens_per_minute must be an integer",
        ),
        (
            [{"name": "a", "key": SECRET, "max_concurrent_requests": "3"}],
            "max_concurrent_requests must be an integer",
        ),
        ([{"name": "a", "key": SECRET, "models": "m"}], "models must be a list of names"),
        ([{"name": "a", "key": SECRET, "models": []}], "models must be a list of names"),
        ([{"name": "a", "key": SECRET, "priority": "high"}], "priority must be low, or"),
        ([{"name": "a", "key": SECRET}, {"name": "a", "key": "other"}], "entry 2: name is used"),
        ([{"name": "a", "key": SECRET}, {"name": "b", "key": SECRET}], "entry 2: key is used"),
    ],
)
def test_invalid_entries_are_named_without_their_key(
    tmp_path: Path, entries: object, words: str
) -> None:
    path = write(tmp_path / "keys.yaml", entries)
    with pytest.raises(ConfigurationError) as raised:
        read_key_file(path)
    assert words in str(raised.value)
    assert path in str(raised.value)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("keys.json", f'[{{"key": "{SECRET}"', "is not valid JSON (line 1)"),
        ("keys.yaml", f"- key: [{SECRET}", "is not valid YAML (line"),
        ("keys.yaml", None, "cannot read"),
    ],
)
def test_an_unreadable_file(tmp_path: Path, name: str, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError) as raised:
        read_key_file(str(tmp_path / name))
    assert words in str(raised.value)
    assert SECRET not in str(raised.value)


# ----------------------------------------------------------------- its owners


async def test_a_request_carries_its_tenant_and_no_key(make_app: AppMaker, tmp_path: Path) -> None:
    app = make_app(replay([5]), api_key_file=write(tmp_path / "keys.json", ENTRIES))
    assert await chat(app, "new-a", priority=-3, cache_salt="s") == 200
    body = {"prompt": [5, 6], "priority": "low"}
    response = await app.http.post("/v1/completions", json=body, headers=bearer("secret-b"))
    assert response.status_code == 200
    first, second = app.engine.requests
    assert (first.tenant.name, first.tenant.max_concurrent_requests) == ("team-a", 8)
    assert (first.priority, second.priority) == (0, LOW_PRIORITY)
    assert (first.cache_salt, second.cache_salt) == ("team-a\0s", "team-b\0")
    assert "new-a" not in repr(first)


async def test_keys_may_share_prefixes_where_the_operator_says_so(
    make_app: AppMaker, tmp_path: Path
) -> None:
    path = write(tmp_path / "keys.json", ENTRIES)
    app = make_app(replay([5]), api_key_file=path, share_prefix_cache=True)
    await chat(app, "new-a", cache_salt="s")
    await chat(app, "secret-b")
    assert [request.cache_salt for request in app.engine.requests] == ["s", ""]


async def test_a_model_that_the_key_may_not_use_is_a_403(
    make_app: AppMaker, tmp_path: Path
) -> None:
    app = make_app(replay([5]), api_key_file=write(tmp_path / "keys.json", ENTRIES))
    for path, body in [
        ("/v1/chat/completions", {"messages": HELLO}),
        ("/v1/completions", {"prompt": "x", "model": MODEL}),
        ("/tokenize", {"prompt": "x", "model": MODEL}),
        ("/detokenize", {"tokens": [5], "model": MODEL}),
    ]:
        response = await app.http.post(path, json=body, headers=bearer("secret-c"))
        assert response.status_code == 403, path
        error = response.json()["error"]
        assert (error["type"], error["code"], error["param"]) == (
            "permission_error",
            "model_not_allowed",
            "model",
        )
    response = await app.http.get(f"/v1/models/{MODEL}", headers=bearer("secret-c"))
    assert response.status_code == 403
    models = (await app.http.get("/v1/models", headers=bearer("secret-c"))).json()["data"]
    assert [model["id"] for model in models] == ["alias"]
    assert await chat(app, "secret-c", model="alias") == 200
    assert await chat(app, "secret-c", model="nobody") == 404
    assert len(app.engine.requests) == 1


async def test_the_file_is_read_again(make_app: AppMaker, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    app = make_app(replay([5]), api_key_file=write(path, ENTRIES), api_keys=("plain",))
    assert [await chat(app, key) for key in ("old-a", "secret-b", "plain")] == [200, 200, 200]
    write(path, [{"name": "team-a", "key": "new-a", "weight": 4}])
    app.gateway.reload_keys()
    keys = ("old-a", "new-a", "secret-b", "plain")
    assert [await chat(app, key) for key in keys] == [401, 200, 401, 200]
    assert app.engine.requests[-2].tenant.weight == 4
    assert app.engine.requests[-1].tenant.name == "key-1"
    path.write_text("[]")
    with pytest.raises(ConfigurationError):
        app.gateway.reload_keys()
    assert await chat(app, "new-a") == 200


async def test_a_priority_that_is_neither_a_number_nor_low(make_app: AppMaker) -> None:
    app = make_app(replay([5]))
    for priority in ("high", 1.5, True):
        body = {"messages": HELLO, "priority": priority}
        response = await app.http.post("/v1/chat/completions", json=body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "priority"
