import pytest

from support.gateway_app import AppMaker
from support.scripted_engine import replay
from taco_gateway.api_keys.key_ring import KeyRing, keys_from_flags

PUBLIC = {"/health", "/ping", "/version", "/metrics"}
BAD_HEADERS: list[dict[str, str | bytes]] = [
    {},
    {"authorization": "Bearer wrong"},
    {"authorization": "Bearer "},
    {"authorization": "secret-1"},
    {"authorization": "Basic c2VjcmV0LTE6"},
    {"authorization": "Bearer schlüssel".encode()},
    {"authorization": "Bearer secret-1", "Authorization": "Bearer secret-1x"},
    {"host": "evil.example/health"},
    {"x-api-key": "secret-1"},
]


@pytest.mark.parametrize("headers", BAD_HEADERS)
async def test_every_route_but_the_public_ones_needs_a_key(
    make_app: AppMaker, headers: dict[str, str]
) -> None:
    app = make_app(replay([5]), api_keys=("secret-1", "secret-2"))
    paths = set()
    for path, methods in app.app.openapi()["paths"].items():
        for method in methods:
            response = await app.http.request(method, path.replace("{name}", "x"), headers=headers)
            expected = 200 if path in PUBLIC else 401
            assert response.status_code == expected, (method, path)
            if expected == 401:
                assert response.json()["error"]["code"] == "invalid_api_key"
                assert response.headers["www-authenticate"] == "Bearer"
        paths.add(path)
    assert paths > PUBLIC
    assert not app.engine.streams


@pytest.mark.parametrize("key", ["secret-1", "secret-2"])
async def test_any_of_the_keys_is_accepted(make_app: AppMaker, key: str) -> None:
    app = make_app(replay([5]), api_keys=("secret-1", "secret-2"))
    response = await app.http.get("/v1/models", headers={"authorization": f"bearer {key}"})
    assert response.status_code == 200


async def test_without_configured_keys_no_key_is_needed(make_app: AppMaker) -> None:
    app = make_app(replay([5]))
    assert (await app.http.get("/v1/models")).status_code == 200


def test_key_ring_holds_no_key() -> None:
    ring = KeyRing(keys_from_flags(["hunter2"]))
    assert ring.find(b"hunter2") is not None
    for wrong in (b"hunter", b"", None):
        assert ring.find(wrong) is None
    assert b"hunter2" not in repr(vars(ring)).encode()
