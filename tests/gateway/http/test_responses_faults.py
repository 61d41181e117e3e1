"""`POST /v1/responses`: bad input, failures while it generates, and clients that leave."""

import asyncio
from typing import Any

import pytest

from support.asgi import AsgiCall
from support.gateway_app import App, AppMaker
from support.patience import PATIENCE_SECONDS
from support.response_events import PATH, read_events
from support.scripted_engine import Hold, Script, Step, replay
from taco_common.http_protocol import ABORT_EXTENSION
from taco_gateway.engine.engine_client import EngineError, SequenceUpdate
from taco_proto.requests import FinishReason, GenerateRequest

TEMPLATE = (
    "{% for t in tools %}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
)
FUNCTION: dict[str, Any] = {"type": "function", "name": "f"}
USER = {"role": "user", "content": "x"}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,x"}
BAD_SCHEMA = {"type": "object", "properties": {"a": {"not": {}}}}
MARK = {"cache_control": {"type": "ephemeral"}}

# What is wrong: the fields beside `input`, the param of the error, and words of its message.
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "input", "Field required"),
    ({"input": 5}, "input", "must be a string or a list of items"),
    ({"input": []}, "input", "at least 1 item"),
    ({"input": ["x"]}, "input[0]", "must be an object"),
    ({"input": [USER, {"type": "web_search_call", "id": "ws_1"}]}, "input[1]", "'web_search_call'"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]", "send the item"),
    ({"input": [{"id": "msg_1"}]}, "input[0]", "send the item"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "'developer'"),
    ({"input": [{"role": "user"}]}, "input[0].content", "Field required"),
    ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0].type", "input_image"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id", "Field required"),
    ({"input": [{"type": "function_call_output", "call_id": "1", "output": "x"}]},
     "input[0].call_id", "stores no responses"),
    ({"input": [{**USER, **MARK}] * 5}, "input", "At most 4 cache_control marks"),
    ({"input": [{"type": "function_call", "name": "f", "call_id": "1", "arguments": "[" * 99}]},
     "input", "does not read them"),
    ({"input": [USER] * 2049}, "input", "at most 2048 items"),
    ({"input": "x" * 3000}, "input", "maximum context length"),
    ({"messages": [USER]}, "messages", "use input"),
    ({"max_tokens": 5}, "max_tokens", "use max_output_tokens"),
    ({"response_format": {"type": "json_object"}}, "response_format", "use text.format"),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "keeps no state"),
    ({"conversation": {"id": "conv_1"}}, "conversation", "keeps no state"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "keeps no state"),
    ({"background": True}, "background", "keeps no state"),
    ({"truncation": "auto"}, "truncation", "only 'disabled'"),
    ({"n": 2}, "n", "accepted values are [1]"),
    ({"max_output_tokens": 0}, "max_output_tokens", "greater than or equal to 1"),
    ({"max_output_tokens": 512}, "max_output_tokens", "maximum context length"),
    ({"min_tokens": 9, "max_output_tokens": 8}, "min_tokens", "min_tokens"),
    ({"temperature": -1}, "temperature", "temperature must be in"),
    ({"stop": [3]}, "stop[0]", "valid string"),
    ({"tools": [{"type": "web_search"}]}, "tools", "tools[0].type: tools of type 'web_search'"),
    ({"tools": [FUNCTION, {"type": "custom", "name": "g"}]}, "tools", "tools[1].type"),
    ({"tools": [{"function": {"name": "f"}}]}, "tools", "tools of type None"),
    ({"tools": [{"type": "function"}]}, "tools", "tools[0].name: Field required"),
    ({"tools": [FUNCTION, FUNCTION]}, "tools", "two functions have the name 'f'"),
    ({"tools": [{**FUNCTION, "strict": True, "parameters": BAD_SCHEMA}]}, "tools",
     "tools[0].parameters/properties/a: keyword"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice",
     "no function 'g'"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "file_search"}}, "tool_choice",
     "tool_choice must be 'none'"),
    ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "mode": "none",
                                           "tools": [FUNCTION]}}, "tool_choice", "allowed_tools"),
    ({"tool_choice": "required"}, "tool_choice", "needs functions"),
    ({"text": {"format": {"type": "xml"}}}, "text.format", "json_schema"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format",
     "text.format.schema is missing"),
    ({"text": {"format": {"type": "json_object"}}, "guided_regex": "a"}, "guided_regex",
     "text.format and guided_regex exclude each other"),
    ({"text": {"verbosity": "low"}}, "text.verbosity", "text.verbosity='low' is not supported"),
    ({"reasoning": {"effort": 5}}, "reasoning.effort", "valid string"),
    ({"chat_template_kwargs": {"tone": 1}}, "chat_template_kwargs", "no variable 'tone'"),
    ({"include": ["everything"]}, "include[0]", "message.output_text.logprobs"),
    ({"top_logprobs": 2}, "top_logprobs", "message.output_text.logprobs"),
    ({"top_logprobs": 21, "include": ["message.output_text.logprobs"]}, "top_logprobs", "20"),
    ({"metadata": {"a": 5}}, "metadata.a", "valid string"),
    ({"metadata": {"a": "x" * 513}}, "metadata.a", "at most 512"),
    ({"continue_final_message": True, "add_generation_prompt": False}, "continue_final_message",
     "role 'assistant'"),
]  # fmt: skip


@pytest.fixture
def app(make_app: AppMaker) -> App:
    return make_app(
        replay([50]),
        chat_template=TEMPLATE,
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
    )


@pytest.mark.parametrize(("fields", "param", "words"), BAD)
async def test_bad_input(app: App, fields: dict[str, Any], param: str, words: str) -> None:
    for stream in (False, True):
        response = await app.http.post(PATH, json={"input": "x", "stream": stream, **fields})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == param
        assert words in error["message"]
    assert not app.engine.requests
    assert (await app.http.post(PATH, json={"input": "x"})).status_code == 200


async def test_large_bodies_are_read_in_another_process(app: App) -> None:
    items: list[dict[str, Any]] = [{**USER, "content": "a fox " * 20}] * 1100
    for stream in (False, True):
        fields = {"stream": stream, "truncate_prompt_tokens": 20, "logit_bias": {"5": 1.0}}
        response = await app.http.post(PATH, json={"input": items, **fields})
        assert response.status_code == 200, response.text
    assert app.engine.requests[0].sampling.logit_bias == {5: 1.0}
    items.append({"type": "function_call_output", "call_id": "1", "output": "x"})
    response = await app.http.post(PATH, json={"input": items})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "input[1100].call_id"


async def test_models_and_keys(make_app: AppMaker) -> None:
    app = make_app(replay([50]), api_keys=("secret",))
    response = await app.http.post(PATH, json={"input": "x"})
    assert response.status_code == 401
    headers = {"authorization": "Bearer secret", "x-request-id": "mine"}
    response = await app.http.post(PATH, json={"input": "x", "model": "other"}, headers=headers)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    response = await app.http.post(PATH, json={"input": "x"}, headers=headers)
    assert response.json()["id"] == "resp_mine"
    assert response.headers["x-request-id"] == "mine"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_token_has_its_status(
    make_app: AppMaker, stream: bool
) -> None:
    app = make_app(lambda _: [EngineError(429, "It is full", retry_after=17)])
    response = await app.http.post(PATH, json={"input": "x", "stream": stream})
    assert response.status_code == 429
    assert response.headers["retry-after"] == "17"
    assert response.json()["error"]["code"] == "rate_limit_exceeded"


FAILURES = [
    (EngineError(400, "it failed", reason="no_allowed_token"), "no_allowed_token", "text.format",
     "invalid_prompt"),
    (EngineError(429, "it failed"), "rate_limit_exceeded", None, "rate_limit_exceeded"),
    (EngineError(500, "it failed"), "server_error", None, "server_error"),
]  # fmt: skip


@pytest.mark.parametrize(("failure", "code", "param", "response_code"), FAILURES)
async def test_a_failure_in_a_stream(
    make_app: AppMaker, failure: EngineError, code: str, param: str | None, response_code: str
) -> None:
    app = make_app(lambda _: [SequenceUpdate(0, [50]), SequenceUpdate(0, [51]), failure])
    body = {"input": "x", "stream": True, "text": {"format": {"type": "json_object"}}}
    response = await app.http.post(PATH, json=body)
    found = read_events(response.text)
    assert [event["type"] for event in found[:4]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    *_, error, failed = found
    assert error["type"] == "error"
    assert (error["message"], error["code"], error["param"]) == ("it failed", code, param)
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": response_code, "message": "it failed"}


async def test_a_failure_behind_pings(make_app: AppMaker) -> None:
    """The response has begun without a token, so its failure has no HTTP status."""
    held = Hold()
    app = make_app(lambda _: [held, EngineError(503, "it failed")], ping_interval=0.01)
    sent: list[bytes] = []

    async def read(body: bytes) -> None:
        sent.append(body)
        held.release()

    await AsgiCall(app.app, PATH, {"input": "x", "stream": True}, on_body=read).run()
    assert sent[0] == b": ping\n\n"
    kinds = [event["type"] for event in read_events(b"".join(sent).decode())]
    assert kinds == ["response.created", "response.in_progress", "error", "response.failed"]


def stuck_after_a_token(held: Hold) -> Script:
    def script(_: GenerateRequest) -> list[Step]:
        return [SequenceUpdate(0, [50]), held]

    return script


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disconnect_ends_the_request_upstream(make_app: AppMaker, stream: bool) -> None:
    held = Hold()
    app = make_app(stuck_after_a_token(held))
    call = AsgiCall(app.app, PATH, {"input": "x", "stream": stream})
    task = asyncio.create_task(call.run())
    await asyncio.wait_for(held.reached.wait(), PATIENCE_SECONDS)
    call.disconnect()
    await asyncio.wait_for(task, PATIENCE_SECONDS)
    assert app.engine.streams[0].given_up
    exposition = app.gateway.metrics.exposition().decode()
    assert 'disconnects_total{model_name="org/scripted"} 1.0' in exposition
    assert 'requests_active{model_name="org/scripted"} 0.0' in exposition


async def test_a_client_that_does_not_read_is_disconnected(make_app: AppMaker) -> None:
    app = make_app(replay(list(range(40, 60))), stall_timeout=0.02)
    aborted: list[bool] = []

    async def never_read(_: bytes) -> None:
        await asyncio.Event().wait()

    extensions = {ABORT_EXTENSION: {"abort": lambda: aborted.append(True)}}
    body = {"input": "x", "stream": True}
    call = AsgiCall(app.app, PATH, body, on_body=never_read, extensions=extensions)
    await asyncio.wait_for(call.run(), PATIENCE_SECONDS)
    assert aborted == [True]
    assert app.engine.streams[0].given_up


async def test_an_aborted_request_has_failed(make_app: AppMaker) -> None:
    app = make_app(lambda _: [SequenceUpdate(0, [50], finish_reason=FinishReason.ABORTED)])
    response = (await app.http.post(PATH, json={"input": "x"})).json()
    assert response["status"] == "failed"
    assert response["error"]["code"] == "server_error"
    assert response["output"][0]["status"] == "incomplete"
