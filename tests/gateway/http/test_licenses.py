"""Answers to clients and load balancers when no worker has a license."""

from dataclasses import replace
from typing import Any

import pytest

from support.gateway_app import AppMaker
from support.scripted_engine import MODEL_INFO, replay
from taco_gateway.admin import ReadinessCheck
from taco_gateway.engine.engine_client import not_licensed
from taco_proto.licenses import LICENSE_INVALID

PROBLEM = "the license server does not answer: http://10.0.0.7:10080: timed out"
UNLICENSED = replace(MODEL_INFO, ready=False, license_problem=PROBLEM)
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
}


def assert_refused(response: Any) -> None:
    assert response.status_code == 503
    assert response.headers["x-should-retry"] == "false"
    assert "retry-after" not in response.headers
    error = response.json()["error"]
    assert error["code"] == LICENSE_INVALID
    assert error["type"] == "service_unavailable_error"
    assert "operator" in error["message"]
    assert "10.0.0.7" not in response.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_without_a_license_requests_are_refused(
    make_app: AppMaker, path: str, stream: bool
) -> None:
    app = make_app(replay([5]), info=UNLICENSED)
    assert_refused(await app.http.post(path, json={**BODIES[path], "stream": stream}))
    assert not app.engine.requests
    app.engine.info = MODEL_INFO
    response = await app.http.post(path, json={**BODIES[path], "stream": stream})
    assert response.status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_a_scheduler_without_license_gives_the_same_error(
    make_app: AppMaker, path: str, stream: bool
) -> None:
    app = make_app(lambda request: [not_licensed()])
    assert_refused(await app.http.post(path, json={**BODIES[path], "stream": stream}))


async def test_a_gateway_without_license_stays_ready_and_reports_the_reason(
    make_app: AppMaker,
) -> None:
    app = make_app(replay([5]), info=UNLICENSED)
    assert_refused(await app.http.get("/health"))
    reason = f"no worker has a license: {PROBLEM}"
    assert await ReadinessCheck(app.gateway).check() == (True, reason)
    assert (await app.http.get("/v1/models")).status_code == 200
