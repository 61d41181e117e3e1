"""LoRA adapters as models of requests."""

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from support.gateway_app import MODEL, AppMaker
from support.scripted_engine import MODEL_INFO, replay
from taco_gateway.api_keys.key_ring import ApiKey, KeyRing
from taco_gateway.engine.engine_client import EngineError

INFO = replace(MODEL_INFO, adapters=("sql", "org/chat"))
MESSAGES = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("name", "adapter"),
    [(None, ""), (MODEL, ""), ("alias", ""), ("sql", "sql"), ("org/chat", "org/chat")],
)
@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": MESSAGES})],
)
async def test_requests_name_an_adapter_as_their_model(
    make_app: AppMaker, path: str, body: dict[str, Any], name: str | None, adapter: str
) -> None:
    app = make_app(replay([50]), info=INFO)
    answer = await app.http.post(path, json={**body, "model": name})
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == (name or MODEL)
    assert app.engine.streams[-1].request.adapter == adapter
    events = await app.events(path, **body, model=name)
    assert {event["model"] for event in events} == {name or MODEL}


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_name_an_adapter_as_their_model(make_app: AppMaker, stream: bool) -> None:
    app = make_app(replay([50]), info=INFO)
    body = {"input": "x", "model": "sql", "stream": stream}
    answer = await app.http.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    assert app.engine.streams[-1].request.adapter == "sql"
    assert '"model":"sql"' in answer.text.replace(" ", "")


async def test_models_lists_adapters_behind_the_base_model(make_app: AppMaker) -> None:
    app = make_app(replay([50]), info=INFO)
    cards = (await app.http.get("/v1/models")).json()["data"]
    shown = [(card["id"], card["root"], card["parent"]) for card in cards]
    assert shown == [
        (MODEL, MODEL, None),
        ("alias", MODEL, None),
        ("sql", MODEL, MODEL),
        ("org/chat", MODEL, MODEL),
    ]
    assert (await app.http.get("/v1/models/org/chat")).json() == cards[3]


@pytest.mark.parametrize("name", ["", "sqL", "sql/", "x" * 500])
async def test_other_names_are_not_found(make_app: AppMaker, name: str) -> None:
    app = make_app(replay([50]), info=INFO)
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/tokenize", {"prompt": "x"}),
    ):
        answer = await app.http.post(path, json={**body, "model": name})
        assert answer.status_code == 404, path
        assert answer.json()["error"]["code"] == "model_not_found"


async def test_without_a_worker_adapters_are_unknown_for_now(make_app: AppMaker) -> None:
    app = make_app(replay([50]), info=None)
    answer = await app.http.post("/v1/completions", json={"prompt": "x", "model": "sql"})
    assert answer.status_code == 503
    lost = make_app(replay([50]), info=replace(INFO, ready=False))
    for name, status in (("sql", 503), ("other", 404)):
        answer = await lost.http.post("/v1/completions", json={"prompt": "x", "model": name})
        assert answer.status_code == status


async def test_an_adapter_that_the_workers_have_lost_is_not_found(make_app: AppMaker) -> None:
    """The scheduler rejects it: other workers came after the gateway's check."""
    message = "the workers have not loaded the adapter 'sql'"
    app = make_app(lambda _: [EngineError(404, message)], info=INFO)
    answer = await app.http.post("/v1/completions", json={"prompt": "x", "model": "sql"})
    assert answer.status_code == 404
    expected = {"message": message, "param": "model", "code": "model_not_found"}
    assert answer.json()["error"].items() >= expected.items()


async def test_beams_and_all_sequences_have_the_adapter(make_app: AppMaker) -> None:
    app = make_app(replay([50]), info=INFO)
    body = {"prompt": ["x", "y"], "model": "sql", "n": 2, "best_of": 3, "use_beam_search": True}
    answer = await app.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert [request.adapter for request in app.engine.requests] == ["sql", "sql"]


async def test_tokenizing_accepts_the_name_of_an_adapter(make_app: AppMaker) -> None:
    app = make_app(replay([50]), info=INFO)
    for path, body in (
        ("/tokenize", {"prompt": "x"}),
        ("/tokenize", {"messages": MESSAGES}),
        ("/detokenize", {"tokens": [50]}),
    ):
        answer = await app.http.post(path, json={**body, "model": "sql"})
        assert answer.status_code == 200, path


async def test_a_name_of_the_base_model_stays_its_own(make_app: AppMaker) -> None:
    app = make_app(replay([50]), info=replace(MODEL_INFO, adapters=("alias",)))
    await app.http.post("/v1/completions", json={"prompt": "x", "model": "alias"})
    assert app.engine.streams[-1].request.adapter == ""
    cards = (await app.http.get("/v1/models")).json()["data"]
    assert [card["id"] for card in cards] == [MODEL, "alias"]


async def test_keys_are_restricted_to_adapters(make_app: AppMaker) -> None:
    hashed = hashlib.sha256(b"secret").digest()
    keys = KeyRing([(hashed, ApiKey(models=frozenset({"sql"})))])
    app = make_app(replay([50]), info=INFO, keys=keys)
    headers = {"authorization": "Bearer secret"}
    for name, status in (("sql", 200), ("org/chat", 403), (MODEL, 403), (None, 403)):
        body = {"prompt": "x", "model": name}
        answer = await app.http.post("/v1/completions", json=body, headers=headers)
        assert answer.status_code == status, name
    cards = (await app.http.get("/v1/models", headers=headers)).json()["data"]
    assert [card["id"] for card in cards] == ["sql"]
