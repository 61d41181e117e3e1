"""`POST /v1/responses`: whole and streamed answers, and clients of OpenAI."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from support.gateway_app import MODEL, App, AppMaker
from support.live_gateway import serve
from support.response_events import PATH, events, rebuilt, streamed, whole, without_ids
from support.scripted_engine import MODEL_INFO, prompt_of, replay
from taco_gateway.engine.engine_client import EngineError, SequenceUpdate
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.requests import FinishReason

TOOLS: list[Any] = [
    {"type": "function", "name": "f", "parameters": {"type": "object"}},
    {"type": "function", "name": "g"},
]
CHAT_TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "g"}},
]
TEMPLATE = (
    "{% for t in tools %}{{ t | tojson }}\n{% endfor %}{{ reasoning_effort }}{{ verbosity }}"
    "{% for m in messages %}{{ m.role }}: {{ m.reasoning_content }}{{ m.content }}"
    "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
ARGUMENTS = '{"city":  "Åre \\" </tool_call>", "n": [1, {}]}'
ANSWER = (
    "<think>\nwhich city\n</think>\n\nLet me see.\n"
    f'<tool_call>\n{{"name": "f", "arguments": {ARGUMENTS}}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
)


def app_with(
    make_app: AppMaker,
    tokenizer: Tokenizer,
    text: str = ANSWER,
    finish: FinishReason = FinishReason.STOP,
    **config: Any,
) -> App:
    return make_app(
        replay(tokenizer.encode(text, add_special_tokens=False), finish),
        chat_template=TEMPLATE,
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
        reasoning_parser="qwen3",
        **config,
    )


def kinds_of(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


async def test_a_whole_response(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    app = make_app(replay(tokenizer.encode("The fox… ü 😀"), FinishReason.STOP))
    response = await whole(
        app,
        model="alias",
        input="Hello",
        instructions="Be kind.",
        metadata={"a": "b"},
        user="me",
        max_output_tokens=100,
        temperature=0.5,
    )
    assert response["id"].startswith("resp_")
    (message,) = response["output"]
    assert message["id"].startswith("msg_")
    part = {"type": "output_text", "text": "The fox… ü 😀", "annotations": [], "logprobs": []}
    expected = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
    assert without_ids(message) == expected
    num_prompt = len(prompt_of(app.engine.requests[0]))
    num_output = len(tokenizer.encode("The fox… ü 😀"))
    assert response["usage"] == {
        "input_tokens": num_prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": num_output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": num_prompt + num_output,
    }
    told = {
        "object": "response",
        "status": "completed",
        "model": "alias",
        "instructions": "Be kind.",
        "metadata": {"a": "b"},
        "user": "me",
        "max_output_tokens": 100,
        "temperature": 0.5,
        "top_p": 1.0,
        "tools": [],
        "tool_choice": "auto",
        "text": {"format": {"type": "text"}, "verbosity": None},
        "store": False,
        "error": None,
        "incomplete_details": None,
        "previous_response_id": None,
    }
    assert response.items() >= told.items()
    assert response["completed_at"] >= response["created_at"]
    assert Response.model_validate(response).output_text == "The fox… ü 😀"


@pytest.mark.parametrize("read", [whole, streamed])
async def test_reasoning_text_and_calls(
    make_app: AppMaker, tokenizer: Tokenizer, read: Any
) -> None:
    app = app_with(make_app, tokenizer)
    response = await read(app, input="Hello", tools=TOOLS)
    assert response["status"] == "completed"
    reasoning, message, *calls = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "which city"}]
    assert reasoning["summary"] == []
    assert message["content"][0]["text"] == "Let me see."
    assert [(call["name"], call["arguments"]) for call in calls] == [("f", ARGUMENTS), ("g", "{}")]
    assert len({item["id"] for item in response["output"]}) == 4
    assert len({call["call_id"] for call in calls}) == 2
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert response["tools"] == TOOLS


async def test_a_response_cut_anywhere_streams_as_it_is_whole(
    make_app: AppMaker, tokenizer: Tokenizer
) -> None:
    num_tokens = len(tokenizer.encode(ANSWER, add_special_tokens=False))
    app = app_with(make_app, tokenizer, finish=FinishReason.LENGTH)
    for max_tokens in range(1, num_tokens, 3):
        body: dict[str, Any] = {"input": "x", "tools": TOOLS, "max_output_tokens": max_tokens}
        response = await whole(app, **body)
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["completed_at"] is None
        *earlier, last = [item["status"] for item in response["output"]]
        assert set(earlier) <= {"completed"}
        assert last == "incomplete"
        assert without_ids(await streamed(app, **body)) == without_ids(response), max_tokens


FORCED = {"type": "function", "name": "f"}
ALLOWED = {"type": "allowed_tools", "mode": "auto", "tools": TOOLS[1:]}
STRICT = {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
SCHEMA = {"name": "n", "schema": {"type": "object"}, "strict": True}
SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.25,
    "top_k": 3,
    "min_p": 0.5,
    "stop": ["x"],
    "logit_bias": {"5": 2.0},
    "repetition_penalty": 1.5,
    "guided_regex": "a+",
}
ROUTING = {
    "prompt_cache_key": "k",
    "cache_salt": "s",
    "priority": 3,
    "prompt_cache_retention": "24h",
}
# A request for a response, and the chat request that is the same for the engine.
SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"instructions": "Be kind."}, {"messages": [{"role": "system", "content": "Be kind."}]}),
    ({"tools": TOOLS}, {"tools": CHAT_TOOLS}),
    ({"tools": TOOLS, "tool_choice": "none"}, {"tools": CHAT_TOOLS, "tool_choice": "none"}),
    ({"tools": TOOLS, "tool_choice": "required"}, {"tools": CHAT_TOOLS, "tool_choice": "required"}),
    (
        {"tools": TOOLS, "tool_choice": FORCED},
        {"tools": CHAT_TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
    ),
    (
        {"tools": TOOLS, "tool_choice": ALLOWED},
        {
            "tools": CHAT_TOOLS,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": CHAT_TOOLS[1:]},
            },
        },
    ),
    (
        {"tools": [{"type": "function", **STRICT}], "parallel_tool_calls": False},
        {"tools": [{"type": "function", "function": STRICT}], "parallel_tool_calls": False},
    ),
    ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
    ({"text": {"format": {"type": "text"}}}, {}),
    (
        {"text": {"format": {"type": "json_schema", **SCHEMA}}},
        {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
    ),
    (
        {"reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "high"}},
        {"reasoning_effort": "low", "verbosity": "high"},
    ),
    ({"max_output_tokens": 5, **SAMPLING}, {"max_tokens": 5, **SAMPLING}),
    (ROUTING, ROUTING),
    ({"thinking_token_budget": 3}, {"thinking_token_budget": 3}),
    (
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"logprobs": True, "top_logprobs": 2},
    ),
]


@pytest.mark.parametrize(("fields", "chat_fields"), SAME)
async def test_the_engine_gets_what_chat_sends(
    make_app: AppMaker, tokenizer: Tokenizer, fields: dict[str, Any], chat_fields: dict[str, Any]
) -> None:
    app = app_with(make_app, tokenizer)
    await whole(app, input="Hello", seed=1, **fields)
    messages = [*chat_fields.get("messages", ()), {"role": "user", "content": "Hello"}]
    body = {"seed": 1, **chat_fields, "messages": messages}
    answer = await app.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    ours, chats = app.engine.requests
    assert prompt_of(ours) == prompt_of(chats)
    for name in ("sampling", "grammar", "pins", "priority", "cache_salt", "prompt_cache_key"):
        assert getattr(ours, name) == getattr(chats, name), name
    assert app.engine.streams[0].cancelled == app.engine.streams[1].cancelled


async def test_a_lora_adapter_is_a_model(make_app: AppMaker) -> None:
    app = make_app(replay([50]), info=replace(MODEL_INFO, adapters=("tuned",)))
    assert (await whole(app, input="x", model="tuned"))["model"] == "tuned"
    assert app.engine.requests[0].adapter == "tuned"


async def test_reasoning_is_left_out_on_request(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    app = app_with(make_app, tokenizer)
    for read in (whole, streamed):
        response = await read(app, input="x", tools=TOOLS, include_reasoning=False)
        assert kinds_of(response) == ["message", "function_call", "function_call"]
        assert response["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


async def test_an_answer_without_text_has_a_message(
    make_app: AppMaker, tokenizer: Tokenizer
) -> None:
    app = make_app(replay([1], FinishReason.STOP))
    for read in (whole, streamed):
        (message,) = (await read(app, input="x"))["output"]
        assert message["content"][0]["text"] == ""


async def test_the_output_is_the_next_input(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    app = app_with(make_app, tokenizer)
    user = {"role": "user", "content": "How cold is it?"}
    response = await whole(app, input=[user], tools=TOOLS)
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    results = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": f"result of {name}"}
        for call, name in zip(calls, "fg", strict=True)
    ]
    await whole(app, input=[user, *response["output"], *results], tools=TOOLS)
    prompt = tokenizer.decode(prompt_of(app.engine.requests[-1]))
    _, _, conversation = prompt.partition("user: ")
    assert conversation == (
        "How cold is it?assistant: which cityLet me see."
        'f{"city": "Åre \\" </tool_call>", "n": [1, {}]}g{}'
        "tool: result of ftool: result of gassistant: "
    )


class City(BaseModel):
    city: str


@asynccontextmanager
async def sdk(app: App) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        serve(app) as port,
        openai.AsyncOpenAI(api_key="k", base_url=f"http://127.0.0.1:{port}/v1") as client,
    ):
        yield client


async def test_openais_client_reads_whole_and_parsed_responses(
    make_app: AppMaker, tokenizer: Tokenizer
) -> None:
    app = make_app(replay(tokenizer.encode('{"city": "Åre"}'), FinishReason.STOP))
    async with sdk(app) as client:
        response = await client.responses.create(model=MODEL, input="Where?")
        assert response.output_text == '{"city": "Åre"}'
        parsed = await client.responses.parse(model=MODEL, input="Where?", text_format=City)
        assert parsed.output_parsed == City(city="Åre")
        assert app.engine.requests[-1].grammar is not None
        with pytest.raises(openai.NotFoundError, match="stores no responses"):
            await client.responses.retrieve(response.id)


async def test_openais_client_streams(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    app = app_with(make_app, tokenizer)
    text = arguments = ""
    async with (
        sdk(app) as client,
        client.responses.stream(model=MODEL, input="Hello", tools=TOOLS) as stream,
    ):
        async for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
            elif event.type == "response.function_call_arguments.delta":
                arguments += event.delta
        response = await stream.get_final_response()
    assert response.output_text == text == "Let me see."
    calls = [item for item in response.output if item.type == "function_call"]
    assert [call.name for call in calls] == ["f", "g"]
    assert "".join(call.arguments for call in calls) == arguments == ARGUMENTS + "{}"


async def test_openais_client_reads_a_failure(make_app: AppMaker) -> None:
    app = make_app(lambda _: [SequenceUpdate(0, [50]), EngineError(500, "it failed")])
    async with sdk(app) as client, client.responses.stream(model=MODEL, input="x") as stream:
        last = [event async for event in stream][-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.message == "it failed"


async def test_a_request_as_coding_agents_send_it(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    """The fields of Codex CLI and of OpenAI's Agents SDK."""
    app = app_with(make_app, tokenizer)
    function = {**TOOLS[0], "strict": False, "description": "Runs a command."}
    response = await streamed(
        app,
        model=MODEL,
        instructions="You are a coding agent.",
        input=[
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "No network."}],
            },
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Fix it."}],
            },
        ],
        tools=[function],
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"effort": "medium", "summary": "auto"},
        store=False,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="019a",
        text={"verbosity": "medium"},
        service_tier="auto",
        client_metadata={"x": "y"},
        stream_options={"include_obfuscation": False},
        truncation="disabled",
        background=False,
        conversation=None,
    )
    assert kinds_of(response) == ["reasoning", "message", "function_call", "function_call"]
    assert response["prompt_cache_key"] == "019a"
    assert response["reasoning"] == {"effort": "medium", "summary": "auto"}
    prompt = tokenizer.decode(prompt_of(app.engine.requests[0]))
    assert prompt.endswith("system: You are a coding agent.\nNo network.user: Fix it.assistant: ")


async def test_the_log_line_and_the_metrics_count_the_tokens(
    make_app: AppMaker, tokenizer: Tokenizer
) -> None:
    app = make_app(replay(tokenizer.encode("a fox"), FinishReason.STOP))
    usage = (await whole(app, input="x"))["usage"]
    assert usage == rebuilt(await events(app, input="x"))["usage"]
    exposition = app.gateway.metrics.exposition().decode()
    assert 'request_success_total{finished_reason="stop",model_name="org/scripted"} 2.0' in (
        exposition
    )


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{PATH}/resp_1"),
        ("DELETE", f"{PATH}/resp_1"),
        ("POST", f"{PATH}/resp_1/cancel"),
        ("GET", f"{PATH}/resp_1/input_items"),
    ],
)
async def test_responses_are_not_stored(make_app: AppMaker, method: str, path: str) -> None:
    app = make_app(replay([50]), api_keys=("secret",))
    assert (await app.http.request(method, path)).status_code == 401
    headers = {"authorization": "Bearer secret"}
    response = await app.http.request(method, path, headers=headers)
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["param"] == "response_id"
    assert "'resp_1' does not exist: this server stores no responses" in error["message"]
