"""The admin listener's routes, which the public port does not have."""

from dataclasses import replace

import httpx
import pytest

from support.gateway_app import App, AppMaker
from support.scripted_engine import MODEL_INFO, replay
from taco_gateway.admin import gateway_admin_app
from taco_gateway.engine.engine_client import EngineError, EngineStats

TCP = "127.0.0.1:1"


def admin_of(app: App) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=gateway_admin_app(app.gateway))
    return httpx.AsyncClient(transport=transport, base_url="http://admin")


@pytest.mark.parametrize("listen", [None, "unix:/admin.sock", TCP])
async def test_the_public_port_has_no_admin_route(make_app: AppMaker, listen: str | None) -> None:
    app = make_app(replay([5]), admin_listen=listen)
    for method, path in [("GET", "/livez"), ("GET", "/readyz"), ("POST", "/drain")]:
        assert (await app.http.request(method, path)).status_code == 404
    # Where operators have a port for them, metrics are only there.
    assert (await app.http.get("/metrics")).status_code == (404 if listen == TCP else 200)
    assert (await app.http.get("/health")).status_code == 200


async def test_metrics_and_liveness(make_app: AppMaker) -> None:
    async with admin_of(make_app(replay([5]), admin_listen=TCP)) as admin:
        assert (await admin.get("/livez")).status_code == 200
        metrics = await admin.get("/metrics")
        assert "taco:http_requests_active" in metrics.text
        assert metrics.headers["content-type"].startswith("text/plain")


async def test_ready_from_the_first_worker_on_until_it_drains(make_app: AppMaker) -> None:
    app = make_app(replay([5]), info=replace(MODEL_INFO, ready=False))
    reason = "no worker serves the model"
    async with admin_of(app) as admin:
        ready = await admin.get("/readyz")
        assert (ready.status_code, ready.json()) == (503, {"ready": False, "reason": reason})
        assert (await admin.get("/livez")).status_code == 200
        app.engine.info = MODEL_INFO
        ready = await admin.get("/readyz")
        assert (ready.status_code, ready.json()) == (200, {"ready": True})
        # Other gateways would have to say the same: somebody has to answer clients.
        app.engine.info = replace(MODEL_INFO, ready=False)
        ready = await admin.get("/readyz")
        assert (ready.status_code, ready.json()) == (200, {"ready": True, "reason": reason})
        app.engine.info = MODEL_INFO
        assert (await admin.get("/drain")).status_code == 405
        for _ in range(2):
            drain = await admin.post("/drain")
            assert drain.json() == {"draining": True, "active_requests": 0}
        assert (await admin.get("/readyz")).json()["reason"] == "draining"
    refused = await app.http.post("/v1/completions", json={"prompt": "x"})
    assert refused.status_code == 503
    assert refused.headers["connection"] == "close"
    assert int(refused.headers["retry-after"]) >= 1
    assert (await app.http.get("/health")).status_code == 503


async def test_enough_workers(make_app: AppMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app(replay([5]), min_ready_workers=2)
    async with admin_of(app) as admin:
        ready = await admin.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["reason"] == "1 of 2 workers are attached"
        stats = replace(await app.engine.stats(), num_workers=2)

        async def two() -> EngineStats:
            return stats

        monkeypatch.setattr(app.engine, "stats", two)
        assert (await admin.get("/readyz")).status_code == 200

        async def silent() -> EngineStats:
            raise EngineError(503, "The scheduler does not answer.")

        monkeypatch.setattr(app.engine, "stats", silent)
        assert (await admin.get("/readyz")).status_code == 503
