"""The `param` of errors: the client's own name of the field that is at fault, if it is one."""

import json
from dataclasses import replace
from typing import Any

import pytest

from support.gateway_app import AppMaker
from support.scripted_engine import MODEL_INFO, Script, replay
from taco_gateway.engine.engine_client import EngineError, SequenceUpdate

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEMPLATE = "{% for t in tools %}{{ t | tojson }}{% endfor %}{{ messages[0].content }}"
TOOL = {"type": "function", "function": {"name": "f"}}
ARGUMENTS = {"vllm_xargs": {"a": 1}}
# The reason of an engine's error, the fields of the request, and the param.
FAILURES: list[tuple[str, dict[str, Any], str | None]] = [
    ("invalid_arguments", ARGUMENTS, "vllm_xargs"),
    ("invalid_arguments", {}, "vllm_xargs"),
    ("invalid_arguments", {**ARGUMENTS, "guided_regex": "a"}, "vllm_xargs"),
    ("no_allowed_token", {"guided_regex": "a+"}, "guided_regex"),
    ("no_allowed_token", {"structured_outputs": {"regex": "a+"}}, "structured_outputs"),
    ("no_allowed_token", {"response_format": {"type": "json_object"}}, "response_format"),
    ("no_allowed_token", {"allowed_token_ids": [5]}, "allowed_token_ids"),
    ("no_allowed_token", {"allowed_token_ids": [5], "guided_regex": "a+"}, None),
    ("no_allowed_token", {"bad_words": ["a"], "no_repeat_ngram_size": 1}, None),
    ("no_allowed_token", {}, None),
    ("grammar_limit", {"guided_regex": "a+", "allowed_token_ids": [5]}, "guided_regex"),
    ("invalid_grammar", {"guided_choice": ["a"]}, "guided_choice"),
    ("processor_failed", ARGUMENTS, None),
    ("invalid_logits", {"guided_regex": "a"}, None),
    ("", {"guided_regex": "a"}, None),
]
WITH_TOOLS: list[tuple[str, dict[str, Any], str | None]] = [
    ("no_allowed_token", {"tools": [TOOL], "tool_choice": "required"}, None),
    ("no_allowed_token", {"tools": [TOOL], "guided_regex": "a"}, None),
    ("invalid_arguments", {"tools": [TOOL], "tool_choice": "required"}, "vllm_xargs"),
]


def failing(reason: str, num_tokens: int) -> Script:
    tokens = [SequenceUpdate(0, [50]) for _ in range(num_tokens)]
    return lambda request: [*tokens, EngineError(400, "it failed", reason=reason)]


@pytest.mark.parametrize(("reason", "fields", "param"), [*FAILURES, *WITH_TOOLS])
async def test_an_error_of_the_engine_names_the_field(
    make_app: AppMaker, reason: str, fields: dict[str, Any], param: str | None
) -> None:
    options = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    info = replace(MODEL_INFO, logits_processors=("a:B",))
    app = make_app(failing(reason, 2), chat_template=TEMPLATE, info=info, **options)
    expected = {"param": param, "code": reason or None, "message": "it failed"}
    bodies: list[tuple[str, dict[str, Any]]] = [
        (CHAT, {"messages": [{"role": "user", "content": "x"}]})
    ]
    if "tools" not in fields:
        bodies += [(COMPLETIONS, {"prompt": "x"}), (COMPLETIONS, {"prompt": ["x", "y"]})]
    for route, body in bodies:
        response = await app.http.post(route, json={**body, **fields})
        assert response.status_code == 400
        assert response.json()["error"].items() >= expected.items()
        streamed = await app.http.post(route, json={**body, **fields, "stream": True})
        *_, last = (line for line in streamed.text.splitlines() if line)
        assert json.loads(last.removeprefix("data: "))["error"].items() >= expected.items()


RENAMED: list[tuple[dict[str, Any], str]] = [
    ({"vllm_xargs": {"a": 1}}, "vllm_xargs"),  # no processor is loaded
    ({"vllm_xargs": {"a": "x" * 20_000}}, "vllm_xargs"),
    ({"vllm_xargs": [1]}, "vllm_xargs"),
    ({"vllm_xargs": "{}"}, "vllm_xargs"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
]


@pytest.mark.parametrize(("fields", "name"), RENAMED)
async def test_a_message_has_the_clients_name_too(
    make_app: AppMaker, fields: dict[str, Any], name: str
) -> None:
    app = make_app(replay([50]))
    response = await app.http.post(
        CHAT, json={"messages": [{"role": "user", "content": "x"}], **fields}
    )
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, name)
    assert error["message"].startswith(name)
    assert "extra_args" not in error["message"]
