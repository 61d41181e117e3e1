"""Tool calls and reasoning of chat, whole and streamed."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from support.gateway_app import App, AppMaker
from support.scripted_engine import MODEL_INFO, prompt_of, replay
from taco_gateway.text.grammar import grammar_pool
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.errors import ConfigurationError
from taco_proto.requests import FinishReason

PATH = "/v1/chat/completions"
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "g"}},
]
TEMPLATE = (
    "{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
ARGUMENTS = '{"city":  "Åre \\" </tool_call>", "n": [1, {}]}'
ANSWER = (
    "<think>\nwhich city\n</think>\n\nLet me see.\n"
    f'<tool_call>\n{{"name": "f", "arguments": {ARGUMENTS}}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
)
CALLS = [("f", ARGUMENTS), ("g", "{}")]


def tool_app(
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


async def whole(app: App, **body: Any) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """The message, the finish reason and the usage."""
    response = await app.http.post(PATH, json={"messages": HELLO, **body})
    assert response.status_code == 200, response.text
    answer = response.json()
    (choice,) = answer["choices"]
    return choice["message"], choice["finish_reason"], answer["usage"]


async def streamed(app: App, **body: Any) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """The same as `whole`, put together as the SDK does; checks the order of the deltas."""
    options = {"include_usage": True}
    *events, last = await app.events(PATH, messages=HELLO, stream_options=options, **body)
    message: dict[str, Any] = {"content": ""}
    stage, finish = 0, ""
    for event in events[1:]:
        (choice,) = event["choices"]
        delta = choice["delta"]
        assert not finish
        finish = choice["finish_reason"] or ""
        assert bool(delta) != bool(finish), "an empty delta"
        assert all(delta.values())
        for name, value in delta.items():
            stages = {"reasoning": 0, "reasoning_content": 0, "content": 1}
            assert stages.get(name, 2) >= stage
            stage = stages.get(name, 2)
            if name != "tool_calls":
                message[name] = message.get(name, "") + value
                continue
            (call,) = value
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                calls.append({"id": call["id"], "type": call["type"], "function": {"name": ""}})
                calls[-1]["function"] = {"name": call["function"]["name"], "arguments": ""}
            else:
                assert call["index"] == len(calls) - 1, "an earlier call"
                assert call.keys() == {"index", "function"}
                assert call["function"].keys() == {"arguments"}
                assert call["function"]["arguments"]
            calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    message["content"] = message["content"] or (None if message.get("tool_calls") else "")
    return message, finish, last["usage"]


def calls_of(message: dict[str, Any]) -> list[tuple[str, str]]:
    calls = message.get("tool_calls") or []
    assert len({call["id"] for call in calls}) == len(calls)
    assert all(call["type"] == "function" and call["id"] for call in calls)
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


@pytest.mark.parametrize("read", [whole, streamed])
async def test_reasoning_content_and_calls(
    make_app: AppMaker, tokenizer: Tokenizer, read: Any
) -> None:
    app = tool_app(make_app, tokenizer)
    message, finish, usage = await read(app, tools=TOOLS)
    assert finish == "tool_calls"
    assert message["reasoning_content"] == message["reasoning"] == "which city"
    assert message["content"] == "Let me see."
    assert calls_of(message) == CALLS
    thinking = tokenizer.encode("<think>\nwhich city\n</think>", add_special_tokens=False)
    num_reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
    assert abs(num_reasoning - len(thinking)) <= 1  # a token may hold the text behind the marker
    assert usage["completion_tokens"] == len(tokenizer.encode(ANSWER, add_special_tokens=False))


async def test_an_answer_cut_anywhere_streams_as_it_is_whole(
    make_app: AppMaker, tokenizer: Tokenizer
) -> None:
    app = tool_app(make_app, tokenizer)
    num_tokens = len(tokenizer.encode(ANSWER, add_special_tokens=False))
    for max_tokens in range(1, num_tokens, 3):
        body = {"tools": TOOLS, "max_tokens": max_tokens}
        app = tool_app(make_app, tokenizer, finish=FinishReason.LENGTH)
        message, finish, usage = await whole(app, **body)
        other, other_finish, other_usage = await streamed(app, **body)
        assert finish == other_finish == "length"
        assert usage == other_usage
        assert calls_of(message) == calls_of(other)
        for name in ("content", "reasoning", "reasoning_content"):
            assert message.get(name) == other.get(name), max_tokens


async def test_only_calls_have_null_content(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    app = tool_app(make_app, tokenizer, '<tool_call>{"name": "g", "arguments": {}}</tool_call>')
    message, _, _ = await whole(app, tools=TOOLS)
    assert message["content"] is None
    assert calls_of(message) == [("g", "{}")]
    assert "reasoning" not in message


@pytest.mark.parametrize("read", [whole, streamed])
async def test_one_call_ends_the_answer_without_parallel_calls(
    make_app: AppMaker, tokenizer: Tokenizer, read: Any
) -> None:
    app = tool_app(make_app, tokenizer)
    message, finish, _ = await read(app, tools=TOOLS, parallel_tool_calls=False)
    assert finish == "tool_calls"
    assert calls_of(message) == CALLS[:1]
    assert app.engine.streams[-1].cancelled == {0}


async def test_no_tools_no_calls(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    app = tool_app(make_app, tokenizer)
    for body in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        message, finish, _ = await whole(app, **body)
        assert finish == "stop"
        assert message["content"].startswith("Let me see.\n<tool_call>")
        assert "tool_calls" not in message
        prompt = tokenizer.decode(prompt_of(app.engine.requests[-1]))
        assert '"name": "g"' not in prompt


@pytest.mark.parametrize("read", [whole, streamed])
async def test_reasoning_is_left_out_on_request(
    make_app: AppMaker, tokenizer: Tokenizer, read: Any
) -> None:
    app = tool_app(make_app, tokenizer)
    message, _, usage = await read(app, include_reasoning=False)
    assert "reasoning" not in message
    assert usage["completion_tokens_details"]["reasoning_tokens"] > 0


async def test_older_names(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    app = tool_app(make_app, tokenizer)
    functions = [tool["function"] for tool in TOOLS]
    message, finish, _ = await whole(app, functions=functions)
    assert message["function_call"] == {"name": "f", "arguments": ARGUMENTS}
    assert finish == "function_call"
    events = await app.events(PATH, messages=HELLO, functions=functions)
    deltas = [event["choices"][0]["delta"] for event in events]
    calls = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert "".join(call["arguments"] for call in calls) == ARGUMENTS
    assert [call["name"] for call in calls if "name" in call] == ["f"]
    assert events[-1]["choices"][0]["finish_reason"] == "function_call"


async def test_a_history_with_calls_and_results(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    app = tool_app(make_app, tokenizer)
    message, _, _ = await whole(app, tools=TOOLS)
    ids = [call["id"] for call in message["tool_calls"]]
    results = [
        {"role": "tool", "tool_call_id": ids[0], "content": "minus 3"},
        {"role": "tool", "tool_call_id": ids[1], "content": [{"type": "text", "text": "ok"}]},
    ]
    await whole(app, tools=TOOLS, messages=[*HELLO, message, *results])
    prompt = tokenizer.decode(prompt_of(app.engine.requests[-1]))
    assert 'f{"city": "Åre \\" </tool_call>", "n": [1, {}]}' in prompt
    assert "tool: minus 3tool: okassistant: " in prompt
    old = [
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "fine"},
    ]
    await whole(app, messages=[*HELLO, *old])
    prompt = tokenizer.decode(prompt_of(app.engine.requests[-1]))
    assert prompt.endswith("assistant: f{}tool: fineassistant: ")


async def test_log_probabilities_of_all_tokens_are_streamed(
    make_app: AppMaker, tokenizer: Tokenizer
) -> None:
    app = tool_app(make_app, tokenizer)
    events = await app.events(PATH, messages=HELLO, tools=TOOLS, return_token_ids=True)
    ids = [i for event in events for i in event["choices"][0].get("token_ids", [])]
    assert ids == tokenizer.encode(ANSWER, add_special_tokens=False)


async def test_tools_without_a_parser(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    app = make_app(replay([50]), chat_template=TEMPLATE, tool_call_parser="hermes")
    response = await app.http.post(PATH, json={"messages": HELLO, "tools": TOOLS})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "tools"
    assert "--enable-auto-tool-choice --tool-call-parser" in error["message"]
    assert not app.engine.requests


FORCED: list[dict[str, Any]] = [
    {"tool_choice": "required"},
    {"tool_choice": {"type": "function", "function": {"name": "f"}}},
    {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
    {"parallel_tool_calls": False},
]


@pytest.mark.parametrize("fields", FORCED)
async def test_forced_calls_have_a_grammar(
    make_app: AppMaker, tokenizer: Tokenizer, fields: dict[str, Any]
) -> None:
    app = tool_app(make_app, tokenizer)
    message, finish, _ = await whole(app, **{"tools": TOOLS, **fields})
    assert finish == "tool_calls"
    assert calls_of(message)
    assert app.engine.requests[-1].grammar is not None
    await whole(app, tools=TOOLS)
    assert app.engine.requests[-1].grammar is None


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("strict", [False, True])
async def test_allowed_tools_are_the_only_ones(
    make_app: AppMaker, tokenizer: Tokenizer, mode: str, strict: bool
) -> None:
    listed = {"type": "function", "function": {"name": "h", "strict": strict}}
    asked: list[dict[str, Any]] = [
        {"tools": [*TOOLS, listed], "tool_choice": allowed(mode, "h", "f", "f")},
        {"tools": [TOOLS[0], listed], "tool_choice": mode},
    ]
    seen = []
    for fields in asked:
        app = tool_app(make_app, tokenizer)
        message, finish, _ = await whole(app, **fields)
        assert (await streamed(app, **fields))[1] == finish == "tool_calls"
        request = app.engine.requests[0]
        assert (request.grammar is not None) == (strict or mode == "required")
        response = await app.http.post("/tokenize", json={"messages": HELLO, **fields})
        assert response.json()["tokens"] == prompt_of(request)
        seen.append((prompt_of(request), request.grammar, message["content"], calls_of(message)))
    assert seen[0] == seen[1]
    prompt = tokenizer.decode(seen[0][0])
    assert '"name": "f"' in prompt
    assert '"name": "g"' not in prompt


async def test_errors_name_the_place_of_an_allowed_tool(
    make_app: AppMaker, tokenizer: Tokenizer
) -> None:
    app = tool_app(make_app, tokenizer)
    parameters = {"type": "object", "properties": {"a": {"not": {}}}}
    bad = {"type": "function", "function": {"name": "h", "strict": True, "parameters": parameters}}
    body = {"messages": HELLO, "tools": [*TOOLS, bad], "tool_choice": allowed("auto", "f", "h")}
    response = await app.http.post(PATH, json=body)
    assert response.status_code == 400
    assert "tools[2].function.parameters/properties/a: keyword" in response.text
    body["tool_choice"] = allowed("auto", "f")
    assert (await app.http.post(PATH, json=body)).status_code == 200


async def test_grammars_are_derived_off_the_event_loop(
    make_app: AppMaker, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """128 tools take longer than a step: other streams would wait."""
    threads: list[threading.Thread] = []

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            threads.append(threading.current_thread())
            return function(*args, **kwargs)

        return noted

    for name in ("answer_grammar", "structural_tag_grammar"):
        monkeypatch.setattr(grammar_pool, name, noting(getattr(grammar_pool, name)))
    tools = [{"type": "function", "function": {"name": f"f{k}"}} for k in range(128)]
    tag = {"begin": "<tool_call>", "schema": {"type": "object"}, "end": "</tool_call>"}
    form = {"type": "structural_tag", "structures": [tag], "triggers": ["<tool"]}
    app = tool_app(make_app, tokenizer, info=replace(MODEL_INFO, max_model_len=2**16))
    await whole(app, tools=tools, tool_choice="required")
    assert len(threads) == 1
    await whole(app, response_format=form)
    assert len(threads) > 1
    assert threading.current_thread() not in threads


@pytest.mark.parametrize("fields", [*FORCED, {"thinking_token_budget": 3}])
async def test_beams_cannot_follow_a_grammar_of_calls(
    make_app: AppMaker, tokenizer: Tokenizer, fields: dict[str, Any]
) -> None:
    app = tool_app(make_app, tokenizer)
    body = {"messages": HELLO, "tools": TOOLS, "use_beam_search": True, "n": 2, **fields}
    response = await app.http.post(PATH, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "use_beam_search"
    assert not app.engine.requests


BAD_CHOICES: list[tuple[dict[str, Any], str, str]] = [
    ({"tool_choice": "any"}, "tool_choice", "'required'"),
    ({"tool_choice": {"type": "function"}}, "tool_choice", "names a function"),
    ({"tool_choice": {"function": {"name": "h"}}}, "tool_choice", "no function 'h'"),
    ({"tool_choice": allowed("auto", "f", "j", "h")}, "tool_choice", "no function 'h' or 'j'"),
    ({"tool_choice": allowed("none", "f")}, "tool_choice", '"auto" or "required"'),
    ({"tool_choice": allowed("auto")}, "tool_choice", '"tools": [{'),
    ({"tool_choice": allowed("auto", "f", "")}, "tool_choice", '"tools": [{'),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice", '"mode"'),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": "f"}}},
     "tool_choice", '"mode"'),
    ({"tools": None, "tool_choice": allowed("auto", "f")}, "tool_choice", "needs functions"),
    ({"tools": None, "functions": [{"name": "f"}], "function_call": allowed("auto", "f")},
     "function_call", "names a function"),
    ({"tools": None, "tool_choice": "required"}, "tool_choice", "needs functions"),
    ({"function_call": {"name": "f"}}, "function_call", "needs functions"),
    ({"tools": None, "functions": [{"name": "f"}], "function_call": "required"},
     "function_call", "names a function"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param", "words"), BAD_CHOICES)
async def test_choices_that_name_nothing(
    make_app: AppMaker, tokenizer: Tokenizer, fields: dict[str, Any], param: str, words: str
) -> None:
    app = tool_app(make_app, tokenizer)
    response = await app.http.post(PATH, json={"messages": HELLO, "tools": TOOLS, **fields})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
    assert not app.engine.requests


async def test_a_template_that_reads_no_tools(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    app = make_app(replay([50]), enable_auto_tool_choice=True, tool_call_parser="hermes")
    response = await app.http.post(PATH, json={"messages": HELLO, "tools": TOOLS})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools"


@pytest.mark.parametrize("field", ["tool_call_parser", "reasoning_parser"])
def test_unknown_formats_are_rejected(make_app: AppMaker, field: str) -> None:
    with pytest.raises(ConfigurationError, match=r"unknown; choose one of .*mistral"):
        make_app(replay([50]), enable_auto_tool_choice=True, **{field: "jinja"})


async def test_constrained_content_follows_the_reasoning(
    make_app: AppMaker, tokenizer: Tokenizer
) -> None:
    app = make_app(
        replay(
            tokenizer.encode('so</think>\n{"a": 1}', add_special_tokens=False), FinishReason.STOP
        ),
        reasoning_parser="deepseek_r1",
    )
    message, finish, _ = await whole(app, response_format={"type": "json_object"})
    assert (message["content"], finish) == ('{"a": 1}', "stop")
    assert message["reasoning"] == "so"
