"""The OpenAPI document: valid, complete, true, and readable without a network."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from fastapi.routing import APIRoute

from support.gateway_app import AppMaker
from support.scripted_engine import replay
from taco_gateway.app import ROUTERS
from taco_gateway.routes import metrics

SPECIFICATION = Path(__file__).with_name("openapi-3.1.schema.json")  # the OpenAPI Initiative's
DOCUMENTATION = {"/openapi.json", "/docs", "/docs/{name}"}
USER = {"role": "user", "content": "x"}
ITEMS = [
    USER,
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
]


def served_routes() -> set[tuple[str, str]]:
    routes = [route for router in (*ROUTERS, metrics.router) for route in router.routes]
    return {
        (method.lower(), re.sub(r":\w+}", "}", route.path))
        for route in routes
        if isinstance(route, APIRoute) and route.path not in DOCUMENTATION
        for method in route.methods or ()
    }


async def document(make_app: AppMaker, **config: Any) -> dict[str, Any]:
    response = await make_app(replay([50]), **config).http.get("/openapi.json")
    assert response.status_code == 200
    return response.json()


def described_routes(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {
        (method, path) for path, operations in document["paths"].items() for method in operations
    }


async def test_it_is_valid_openapi(make_app: AppMaker) -> None:
    found = await document(make_app)
    specification = json.loads(SPECIFICATION.read_text())
    jsonschema.Draft202012Validator(specification).validate(found)
    for schema in found["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(found)))
    assert references <= found["components"]["schemas"].keys()


async def test_it_has_every_route(make_app: AppMaker) -> None:
    assert described_routes(await document(make_app)) == served_routes()


async def test_the_document_tells_which_routes_need_a_key(make_app: AppMaker) -> None:
    app = make_app(replay([50]), api_keys=("secret",))
    found = (await app.http.get("/openapi.json")).json()
    for method, path in described_routes(found):
        response = await app.http.request(method, path.replace("{name}", "x"))
        asks = response.status_code == 401
        assert bool(found["paths"][path][method]["security"]) == asks, (method, path)
    assert (await app.http.get("/docs")).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "is_valid"),
    [
        ("/v1/completions", {"prompt": "x", "stop": "y", "priority": "low"}, True),
        ("/v1/completions", {"prompt": [1, 2], "stop": ["y"], "logit_bias": {"5": 1.0}}, True),
        ("/v1/completions", {"prompt": [[1], [2]], "temperature": None}, True),
        ("/v1/completions", {"prompt": 5}, False),
        ("/v1/completions", {"prompt": "x", "temperature": "hot"}, False),
        ("/v1/completions", {}, False),
        ("/v1/chat/completions", {"messages": [USER]}, True),
        ("/v1/chat/completions", {"messages": []}, False),
        ("/v1/chat/completions", {"messages": [{"role": "root", "content": "x"}]}, False),
        ("/v1/responses", {"input": "x", "stop": "y", "temperature": None}, True),
        ("/v1/responses", {"input": ITEMS, "tools": [], "reasoning": {"effort": "low"}}, True),
        ("/v1/responses", {"input": [{"role": "root", "content": "x"}]}, False),
        ("/v1/responses", {"input": [{"type": "web_search_call"}]}, False),
        ("/v1/responses", {"input": 5}, False),
        ("/v1/responses", {"input": "x", "top_logprobs": 21}, False),
        ("/v1/responses", {}, False),
        ("/tokenize", {"prompt": "x", "return_token_strs": True}, True),
        ("/tokenize", {"messages": [USER]}, True),
        ("/tokenize", {"prompt": ["x"]}, False),
        ("/detokenize", {"tokens": [50]}, True),
        ("/detokenize", {"tokens": ["x"]}, False),
    ],
)
async def test_requests_match_the_document(
    make_app: AppMaker, path: str, body: dict[str, Any], is_valid: bool
) -> None:
    app = make_app(replay([50]))
    found = (await app.http.get("/openapi.json")).json()
    schema = found["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = jsonschema.Draft202012Validator(schema | {"components": found["components"]})
    assert validator.is_valid(body) == is_valid
    response = await app.http.post(path, json=body)
    assert response.status_code == (200 if is_valid else 400), response.text


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("get", "/v1/models", None),
        ("get", "/v1/models/{name}", None),
        ("get", "/version", None),
        ("post", "/v1/completions", {"prompt": "x", "logprobs": 1}),
        ("post", "/v1/chat/completions", {"messages": [USER], "logprobs": True}),
        ("post", "/v1/responses", {"input": "x"}),
        ("get", "/v1/responses/{response_id}", None),
        ("post", "/tokenize", {"prompt": "x"}),
        ("post", "/detokenize", {"tokens": [50]}),
        ("post", "/detokenize", {"tokens": 5}),
    ],
)
async def test_answers_match_the_document(
    make_app: AppMaker, method: str, path: str, body: dict[str, Any] | None
) -> None:
    app = make_app(replay([50]))
    found = (await app.http.get("/openapi.json")).json()
    response = await app.http.request(method, path.replace("{name}", "org/scripted"), json=body)
    responses = found["paths"][path][method]["responses"]
    content = responses.get(str(response.status_code), responses["default"])["content"]
    schema = content["application/json"]["schema"] | {"components": found["components"]}
    jsonschema.Draft202012Validator(schema).validate(response.json())


async def test_the_page_needs_no_network(make_app: AppMaker) -> None:
    app = make_app(replay([50]), api_keys=("secret",), root_path="/behind")
    page = await app.http.get("/docs")
    assert page.status_code == 200
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    assert "//" not in page.text
    files = re.findall(r'(?:src|href)="(.*?)"', page.text)
    assert len(files) == 4
    for name in files:
        assert not name.startswith("/"), "a reverse proxy serves it under another path"
        response = await app.http.get(f"/{name}")
        assert response.status_code == 200, name
        assert response.content
    assert 'url: "openapi.json"' in (await app.http.get("/docs/start.js")).text
    for name in ("other.js", "..%2f__init__.py", "core.py"):
        assert (await app.http.get(f"/docs/{name}")).status_code == 404


async def test_a_reverse_proxys_path_is_in_it(make_app: AppMaker) -> None:
    assert "servers" not in await document(make_app)
    found = await document(make_app, root_path="/behind")
    assert found["servers"] == [{"url": "/behind"}]


async def test_without_metrics_on_the_public_port(make_app: AppMaker) -> None:
    found = await document(make_app, admin_listen="127.0.0.1:1")
    assert "/metrics" not in found["paths"]
    assert not {"/livez", "/readyz", "/drain"} & found["paths"].keys()
