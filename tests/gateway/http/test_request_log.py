"""One log line for each finished request, with its outcome and without its prompt."""

import logging
from typing import Any

import pytest

from support.gateway_app import AppMaker
from support.scripted_engine import replay


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "taco.gateway")


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "event", "") == "request"]


def data_of(record: logging.LogRecord) -> dict[str, Any]:
    return record.__dict__["data"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_finished_request(
    make_app: AppMaker, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    app = make_app(replay([50, 51]), api_keys=("secret",))
    body = {"prompt": "The quick fox", "stream": stream, "max_tokens": 2}
    headers = {"authorization": "Bearer secret", "x-request-id": "mine"}
    answer = await app.http.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200
    (record,) = lines(caplog)
    data, message = data_of(record), record.getMessage()
    assert data["id"] == "mine"
    assert (data["method"], data["route"], data["status"]) == ("POST", "/v1/completions", 200)
    assert data["key"] == "key-1"
    assert data["model"] == app.gateway.model_names[0]
    assert (data["prompt_tokens"] > 0, data["completion_tokens"]) == (True, 2)
    assert data["finish_reasons"] == ["length"]
    assert 0 <= data["ttft_seconds"] <= data["total_seconds"]
    assert message.startswith("mine POST /v1/completions 200 key=key-1 ")
    assert f"tokens={data['prompt_tokens']}+2 cached=0" in message
    assert "secret" not in caplog.text
    assert "quick" not in caplog.text


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b'{"prompt": "x", "model": "other"}', {"authorization": "Bearer secret"}, 404),
        (b"{", {"authorization": "Bearer secret"}, 400),
        (b'{"prompt": "x"}', {}, 401),
    ],
)
async def test_a_rejected_request(
    make_app: AppMaker,
    caplog: pytest.LogCaptureFixture,
    body: bytes,
    headers: dict[str, str],
    status: int,
) -> None:
    app = make_app(replay([50]), api_keys=("secret",))
    answer = await app.http.post("/v1/completions", content=body, headers=headers)
    assert answer.status_code == status
    (record,) = lines(caplog)
    data = data_of(record)
    assert data["status"] == status
    assert data["error"] == answer.json()["error"]["message"]
    assert data["key"] == ("" if status == 401 else "key-1")
    assert data["queue_seconds"] is data["ttft_seconds"] is None


async def test_probes_are_logged_at_level_debug(
    make_app: AppMaker, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(replay([50]))
    await app.http.get("/health")
    assert not lines(caplog)
    caplog.set_level(logging.DEBUG, "taco.gateway")
    await app.http.get("/health")
    (record,) = lines(caplog)
    assert data_of(record)["route"] == "/health"
