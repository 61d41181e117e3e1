"""Constraints from the HTTP body to the text, on a real engine with random weights."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from support.checkpoints import make_checkpoint
from support.patience import wait_until
from support.real_app import real_app
from support.serving import Serving

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "ü"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
LARK = 'start: "[" /[0-9]+/ "]" | "none"'
TAG = {"type": "tag", "begin": "<a>", "end": "</a>",
       "content": {"type": "regex", "pattern": "[01]{3}"}}  # fmt: skip
GBNF = 'root ::= "yes" | "no" | "perhaps"'
BASE: dict[str, Any] = {"prompt": "The quick", "max_tokens": 400, "temperature": 1.0, "seed": 3}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 400, "seed": 4}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture
async def http(checkpoint: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with real_app(checkpoint) as client:
        yield client


def is_valid(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


def is_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


def matches(pattern: str) -> Any:
    return re.compile(pattern).fullmatch


FIELDS: list[tuple[dict[str, Any], Any]] = [
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, is_valid),
    ({"guided_json": SCHEMA}, is_valid),
    ({"guided_json": json.dumps(SCHEMA), "guided_whitespace_pattern": " ?"}, is_valid),
    ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, is_valid),
    ({"guided_regex": "[a-f]{3}-[0-9]+/x", "guided_decoding_backend": "outlines"},
     matches("[a-f]{3}-[0-9]+/x")),
    ({"structured_outputs": {"regex": "^(ab|cd){2}$"}}, matches("(ab|cd){2}")),
    ({"guided_choice": ["yes", "no\n\"", "wörld"]}, ["yes", "no\n\"", "wörld"].__contains__),
    ({"structured_outputs": {"choice": ["x"]}}, ["x"].__contains__),
    ({"guided_grammar": GBNF}, ["yes", "no", "perhaps"].__contains__),
    ({"response_format": {"type": "structural_tag", "format": TAG}}, matches("<a>[01]{3}</a>")),
    ({"structured_outputs": {"structural_tag": json.dumps({"format": TAG})}},
     matches("<a>[01]{3}</a>")),
    ({"structured_outputs": {"grammar": LARK}}, matches(r"\[\d+\]|none")),
]  # fmt: skip


async def test_each_field_constrains_the_text(http: httpx.AsyncClient) -> None:
    for fields, is_right in FIELDS:
        body, chat = {**BASE, **fields}, {**CHAT, **fields}
        answers = await asyncio.gather(
            http.post("/v1/completions", json={**body, "n": 2}),
            http.post("/v1/completions", json={**body, "temperature": 0}),
            http.post("/v1/completions", json={**body, "ignore_eos": True}),
            http.post("/v1/chat/completions", json={**chat, "min_tokens": 3}),
        )
        for answer in answers:
            for choice in answer.json()["choices"]:
                text = choice["message"]["content"] if "message" in choice else choice["text"]
                assert choice["finish_reason"] == "stop", (text, fields)
                assert is_right(text), (text, fields)


async def test_a_json_object_is_an_object_whose_length_may_end(http: httpx.AsyncClient) -> None:
    bias = {"logit_bias": {}, "temperature": 1.0}
    body = {**CHAT, **bias, "response_format": {"type": "json_object"}, "n": 8}
    choices = (await http.post("/v1/chat/completions", json=body)).json()["choices"]
    texts = [choice["message"]["content"] for choice in choices]
    assert all(text.startswith("{") for text in texts)
    ended = [t for t, c in zip(texts, choices, strict=True) if c["finish_reason"] == "stop"]
    assert all(map(is_object, ended))


async def test_streams_equal_whole_answers(http: httpx.AsyncClient) -> None:
    body = {**BASE, "guided_json": SCHEMA}
    whole = (await http.post("/v1/completions", json=body)).json()["choices"][0]["text"]
    streamed = await http.post("/v1/completions", json={**body, "stream": True})
    assert streamed_text(streamed.text) == whole


async def test_log_probabilities_are_the_models_own(http: httpx.AsyncClient) -> None:
    body = {**BASE, "max_tokens": 1, "logprobs": 5, "temperature": 0}
    free = (await http.post("/v1/completions", json=body)).json()["choices"][0]["logprobs"]
    kept = (await http.post("/v1/completions", json={**body, "guided_choice": ["q", "z"]})).json()
    logprobs = kept["choices"][0]["logprobs"]
    top = logprobs["top_logprobs"][0]
    assert logprobs["tokens"][0] in ("q", "z")
    assert {name: top[name] for name in free["top_logprobs"][0]} == free["top_logprobs"][0]


HOSTILE: list[tuple[dict[str, Any], str, str]] = [
    ({"guided_json": {"properties": {"a": {"$ref": "https://example.com/"}}}},
     "guided_json", "/properties/a: keyword '$ref'"),
    ({"guided_json": {"properties": {"a": {"items": {"not": {}}}}}},
     "guided_json", "/properties/a/items: keyword 'not'"),
    ({"response_format": {"type": "json_schema",
                          "json_schema": {"schema": {"type": "string", "pattern": "(?=a)b"}}}},
     "response_format", "/: keyword 'pattern'"),
    ({"guided_json": {"x-guidance": {"lenient": True}, "uniqueItems": True}},
     "guided_json", "uniqueItems"),
    ({"guided_json": "[" * 100_000}, "guided_json", "not valid JSON"),
    ({"guided_json": {"enum": ["x" * 100] * 100_000}}, "guided_json", "at most 4096"),
    ({"guided_regex": "(?=a)b"}, "guided_regex", "look-around"),
    ({"guided_regex": "[^\\s\\S]"}, "guided_regex", "no text matches"),
    ({"guided_json": {"allOf": [{"type": "string"}, {"type": "integer"}]}},
     "guided_json", "no value is valid: "),
    ({"guided_grammar": "{}"}, "guided_grammar", "neither Lark's nor GBNF"),
    ({"structured_outputs": {"grammar": "start: missing"}}, "structured_outputs", "unknown name"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"regexp": "a"}}, "structured_outputs", "regexp"),
    ({"structured_outputs": "x"}, "structured_outputs", "object"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "exclude each other"),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"},
     "guided_regex", "exclude each other"),
    ({"response_format": {"type": "yaml"}}, "response_format", "json_schema"),
    ({"response_format": {"type": "structural_tag", "format": {"type": "html"}}},
     "response_format", "structural_tag.format.type"),
    ({"structured_outputs": {"structural_tag": {"structures": [], "triggers": []}}},
     "structured_outputs", "structural_tag.structures"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format", "schema"),
    ({"guided_choice": "a"}, "guided_choice", "type"),
]  # fmt: skip


async def test_bad_constraints_are_rejected_and_disturb_nobody(http: httpx.AsyncClient) -> None:
    neighbour = {**BASE, "guided_json": SCHEMA}
    alone = (await http.post("/v1/completions", json=neighbour)).json()["choices"]
    beside = asyncio.create_task(http.post("/v1/completions", json=neighbour))
    for fields, param, words in HOSTILE:
        for route, body in (("/v1/completions", BASE), ("/v1/chat/completions", CHAT)):
            answer = await http.post(route, json={**body, **fields, "stream": True})
            error = answer.json()["error"]
            assert answer.status_code == 400, (fields, error)
            assert error["param"] == param, error
            assert words in error["message"], error
    assert (await beside).json()["choices"] == alone


async def test_a_text_that_cannot_continue_ends_with_an_error(http: httpx.AsyncClient) -> None:
    free = {**BASE, "max_tokens": 20}
    alone = (await http.post("/v1/completions", json=free)).json()["choices"]
    lark = 'start: "a" end\nend: /[^\\s\\S]/'
    answers = await asyncio.gather(
        http.post("/v1/completions", json={**free, "guided_grammar": lark}),
        http.post("/v1/completions", json=free),
    )
    assert answers[0].status_code == 400
    error = answers[0].json()["error"]
    assert (error["code"], error["param"]) == ("no_allowed_token", "guided_grammar")
    assert answers[1].json()["choices"] == alone


def test_processes_serve_constraints_and_a_killed_worker_changes_no_text(
    checkpoint: Path, tmp_path: Path
) -> None:
    """The second request names the grammar by its hash; the next worker rebuilds its state."""
    body = {**BASE, "guided_json": SCHEMA, "max_tokens": 300, "stream": True}
    plain = {**BASE, "guided_choice": ["yes", "no"]}
    with (
        Serving(tmp_path, checkpoint, "--num-gpu-blocks-override", "256").wait_ready() as server,
        httpx.Client(base_url=server.url, timeout=120) as http,
    ):
        whole = streamed_text(http.post("/v1/completions", json=body).text)
        assert is_valid(whole)
        assert streamed_text(http.post("/v1/completions", json=body).text) == whole
        with http.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            seen = next(line for line in lines if line.startswith("data: {"))
            server.children()["worker"].kill()
            rest = "\n".join([seen, *lines])
        assert streamed_text(rest) == whole
        # If the answer ended before the kill, no worker serves until the next one has started.
        wait_until(lambda: http.get("/health").status_code == 200, "the next worker")
        choice = http.post("/v1/completions", json=plain).json()["choices"][0]
        assert choice["text"] in ("yes", "no")


def streamed_text(stream: str) -> str:
    chunks = [line[6:] for line in stream.splitlines() if line.startswith("data: {")]
    return "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks)
