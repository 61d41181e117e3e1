"""Forced tool calls and constraints behind reasoning, on a real engine with random weights."""

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from tokenizers import Tokenizer

from support.checkpoints import make_checkpoint
from support.real_app import real_app
from support.serving import Serving
from taco_gateway.text.response.built_in import TOOL_FORMATS

PATH = "/v1/chat/completions"
TEMPLATE = (
    "{% for t in tools %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    "{% if think %}<think>\n{% endif %}"
)
MARKERS = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]",
    "<|python_tag|>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<|action_start|>", "<|plugin|>", "<|action_end|>",
]  # fmt: skip
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3000}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(
        tmp_path_factory.mktemp("model"),
        chat_template=TEMPLATE,
        added_tokens=MARKERS,
        max_position_embeddings=4096,
    )


@pytest.fixture(scope="module")
def bias(checkpoint: Path) -> dict[str, float]:
    """Makes answers short: white space is rare, and markers that end something are frequent."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    ends = {
        "<|eos|>",
        "<|end|>",
        "</think>",
        "</tool_call>",
        "<｜tool▁calls▁end｜>",
        "<|action_end|>",
    }
    biases: dict[str, float] = {}
    for token, token_id in tokenizer.get_vocab().items():
        if token in ends:
            biases[str(token_id)] = 4.0
        elif not tokenizer.decode([token_id]).strip():
            biases[str(token_id)] = -4.0
    return biases


@asynccontextmanager
async def app(checkpoint: Path, **gateway: Any) -> AsyncIterator[httpx.AsyncClient]:
    options = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", **gateway}
    async with real_app(checkpoint, options, num_blocks=1024) as http:
        yield http


def random_schema(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    """A schema of bounded values, with references to the definitions of `tool`."""
    match chance.choice(["string", "integer", "boolean", "enum", "ref", "object", "array"]):
        case "string":
            return {"type": "string", "maxLength": chance.randint(0, 4)}
        case "integer":
            low = chance.randint(-50, 50)
            return {"type": "integer", "minimum": low, "maximum": low + chance.randint(0, 99)}
        case "boolean":
            return {"type": ["boolean", "null"]}
        case "enum":
            return {"enum": chance.sample(["a", "b\n", "</tool_call>", 'q"', "ü"], 2)}
        case "array" if depth < 3:
            return {"type": "array", "items": random_schema(chance, depth + 1), "maxItems": 2}
        case "object" if depth < 3:
            return random_object(chance, depth + 1)
    return {"$ref": "#/$defs/pair"}


def random_object(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    names = chance.sample(["a", "b_c", "d-e", "ß", "f.g"], chance.randint(1, 3))
    return {
        "type": "object",
        "properties": {name: random_schema(chance, depth) for name in names},
        "required": [name for name in names if chance.random() < 0.6],
        "additionalProperties": False,
    }


def tool(name: str, schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    pair = {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 2}
    function = {"name": name, "parameters": {**schema, "$defs": {"pair": pair}}, **more}
    return {"type": "function", "function": function}


def random_tools(seed: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [tool(f"tool_{k}", random_object(chance), strict=k == 0) for k in range(3)]


def valid_calls(message: dict[str, Any], tools: list[dict[str, Any]]) -> list[str]:
    """The names of a message's calls, whose arguments are valid."""
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
    functions = [call["function"] for call in message.get("tool_calls") or []]
    for function in functions:
        jsonschema.validate(json.loads(function["arguments"]), schemas[function["name"]])
    return [function["name"] for function in functions]


async def answer(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await http.post(PATH, json={**CHAT, **fields})
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


async def streamed(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    """The same as `answer`, put together from a stream."""
    response = await http.post(PATH, json={**CHAT, **fields, "stream": True})
    return put_together(response.text)


def put_together(stream: str) -> dict[str, Any]:
    """The choice of a stream, as an SDK makes it."""
    message: dict[str, Any] = {"content": None}
    finish = None
    for line in stream.splitlines():
        if not line.startswith("data: {"):
            continue
        (choice,) = json.loads(line[6:])["choices"]
        finish = choice["finish_reason"] or finish
        for name in ("content", "reasoning"):
            if text := choice["delta"].get(name):
                message[name] = (message.get(name) or "") + text
        for call in choice["delta"].get("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                calls.append({"function": {"name": call["function"]["name"], "arguments": ""}})
            calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    return {"message": message, "finish_reason": finish}


@pytest.mark.parametrize("name", TOOL_FORMATS)
async def test_forced_calls_are_valid_in_each_format(
    checkpoint: Path, bias: dict[str, float], name: str
) -> None:
    async with app(checkpoint, tool_call_parser=name) as http:
        for seed in range(3):
            tools = random_tools(seed)
            fields = {"tools": tools, "seed": seed, "logit_bias": bias}
            choice = await answer(http, **fields, tool_choice="required")
            assert choice["finish_reason"] == "tool_calls", choice
            assert valid_calls(choice["message"], tools)
            assert choice["message"]["content"] is None
            again = await streamed(http, **fields, tool_choice="required")
            assert again["finish_reason"] == "tool_calls"
            written = [
                [call["function"] for call in made["message"]["tool_calls"]]
                for made in (choice, again)
            ]
            assert written[0] == written[1]
            named = {"type": "function", "function": {"name": "tool_1"}}
            choice = await answer(http, **fields, tool_choice=named, parallel_tool_calls=False)
            assert valid_calls(choice["message"], tools) == ["tool_1"]


STRICT = tool("strict", random_object(random.Random(5)), strict=True)
LOOSE = tool("loose", {"type": "object"})


async def test_free_text_before_a_call_is_as_without_a_grammar(
    checkpoint: Path, bias: dict[str, float]
) -> None:
    """Up to the marker of the first call the tokens are the same."""
    free_tools = [tool("strict", {"type": "object"})]
    async with app(checkpoint, reasoning_parser="qwen3") as http:
        num_calls = 0
        for seed in range(8):
            fields: dict[str, Any] = {"seed": seed, "max_tokens": 300, "return_token_ids": True}
            fields["logit_bias"] = bias | marker_bias(checkpoint, "<tool_call>", 5.0)
            fields["logit_bias"] |= {"1": -2.0, "2": -2.0}  # the end tokens
            free = await answer(http, **fields, tools=free_tools)
            kept = await answer(http, **fields, tools=[STRICT], parallel_tool_calls=False)
            marker = int(*marker_bias(checkpoint, "<tool_call>", 0.0))
            texts = [choice["token_ids"] for choice in (free, kept)]
            cut = texts[1].index(marker) if marker in texts[1] else len(texts[1])
            assert cut
            assert texts[0][:cut] == texts[1][:cut]
            if cut < len(texts[1]) and kept["finish_reason"] != "length":
                num_calls += len(valid_calls(kept["message"], [STRICT]))
        assert num_calls > 2


def marker_bias(checkpoint: Path, text: str, value: float) -> dict[str, float]:
    token_id = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).token_to_id(text)
    return {str(token_id): value}


async def test_constraints_begin_behind_the_reasoning(
    checkpoint: Path, bias: dict[str, float]
) -> None:
    schema = random_object(random.Random(2))
    schema["$defs"] = {"pair": {"enum": [[1], [2]]}}
    async with app(checkpoint, reasoning_parser="qwen3") as http:
        thinking = {"chat_template_kwargs": {"think": True}}
        for seed in range(3):
            fields: dict[str, Any] = {**thinking, "seed": seed, "logit_bias": bias}
            form = {"type": "json_schema", "json_schema": {"schema": schema}}
            choice = await answer(http, **fields, response_format=form)
            assert choice["finish_reason"] == "stop"
            assert choice["message"]["reasoning"]
            jsonschema.validate(json.loads(choice["message"]["content"]), schema)
            choice = await answer(http, **fields, guided_regex="[ab]{3}", tools=[LOOSE])
            message = choice["message"]
            assert message["reasoning"]
            assert message["content"] in (None, *ab_texts()), message
            assert bool(message["content"]) != bool(message.get("tool_calls"))
            choice = await answer(http, **fields, tools=[STRICT, LOOSE], tool_choice="required")
            assert choice["finish_reason"] == "tool_calls"
            assert valid_calls(choice["message"], [STRICT, LOOSE])
            assert choice["message"]["reasoning"]


def ab_texts() -> list[str]:
    return [a + b + c for a in "ab" for b in "ab" for c in "ab"]


async def test_a_budget_ends_the_reasoning(checkpoint: Path) -> None:
    async with app(checkpoint, reasoning_parser="qwen3") as http:
        end = int(*marker_bias(checkpoint, "</think>", 0.0))
        fields: dict[str, Any] = {"chat_template_kwargs": {"think": True}, "return_token_ids": True}
        fields |= {"logit_bias": marker_bias(checkpoint, "</think>", -50.0), "max_tokens": 40}
        fields["ignore_eos"] = True
        for budget in (0, 1, 7):
            for more in ({}, {"guided_choice": ["yes", "no"]}, {"tools": [LOOSE]}):
                choice = await answer(http, **fields, **more, thinking_token_budget=budget)
                assert choice["token_ids"].index(end) == budget
                if "guided_choice" in more:
                    assert choice["message"]["content"] in ("yes", "no")
        choice = await answer(http, **fields, thinking_token_budget=-1)
        assert end not in choice["token_ids"]
    async with app(checkpoint) as http:
        response = await http.post(PATH, json={**CHAT, "thinking_token_budget": 3})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "thinking_token_budget"


HOSTILE: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [tool("f", {"properties": {"a": {"$ref": "https://example.com/"}}}, strict=True)]},
     "tools", "tools[0].function.parameters/properties/a: keyword '$ref'"),
    ({"tools": [LOOSE, tool("f", {"properties": {"a": {"not": {}}}}, strict=True)]},
     "tools", "tools[1].function.parameters/properties/a: keyword 'not'"),
    ({"tools": [tool("f", {"type": "string"})]}, "tools", "schema of an object"),
    ({"tools": [tool("f", {"properties": {"a": {"pattern": "(?=a)b"}}}, strict=True)]},
     "tools", "keyword 'pattern'"),
    ({"tools": [tool("f", {"properties": {"a": {"enum": []}}, "required": ["a"]})]},
     "tools", "tools[0].function.parameters"),
    ({"tools": [tool("f", {"properties": {"a": {"enum": ["x" * 1000] * 1500}}})]},
     "tools", ""),
]  # fmt: skip


async def test_hostile_tools_are_rejected_and_disturb_no_one(checkpoint: Path) -> None:
    async with app(checkpoint) as http:
        for fields, param, words in HOSTILE:
            body = {**CHAT, "tool_choice": "required", **fields}
            response = await http.post(PATH, json=body)
            assert response.status_code == 400, (fields, response.text[:500])
            error = response.json()["error"]
            assert error["param"] == param, error
            assert words in error["message"], error
        lenient = tool("f", {"properties": {"a": {"not": {}, "type": "null"}}, "required": ["a"]})
        choice = await answer(http, tools=[lenient], tool_choice="required", max_tokens=400)
        assert choice["message"]["tool_calls"]


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "deepseek_v3"])
async def test_markers_in_arguments_and_many_tools(
    checkpoint: Path, bias: dict[str, float], name: str
) -> None:
    marked = "</tool_call><tool_call>{<｜tool▁calls▁end｜>"
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"enum": [marked]}}}
    tools = [tool(f"f{k}", {**schema, "additionalProperties": False}) for k in range(128)]
    async with app(checkpoint, tool_call_parser=name) as http:
        choice = await answer(
            http,
            tools=tools,
            tool_choice={"type": "function", "function": {"name": "f77"}},
            parallel_tool_calls=False,
            logit_bias=bias,
        )
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "f77"
        assert json.loads(call["function"]["arguments"]) == {"a": marked}
        choice = await answer(
            http, tools=tools, tool_choice="required", logit_bias=bias, max_tokens=500
        )
        assert valid_calls(choice["message"], tools)


async def test_an_answer_cut_short_ends_by_length(checkpoint: Path) -> None:
    async with app(checkpoint) as http:
        fields = {"tools": [STRICT], "tool_choice": "required", "max_tokens": 5}
        choice = await answer(http, **fields)
        assert choice["finish_reason"] == "length"
        assert (await streamed(http, **fields))["finish_reason"] == "length"


async def test_function_call_names_a_function(checkpoint: Path, bias: dict[str, float]) -> None:
    async with app(checkpoint) as http:
        functions = [t["function"] for t in random_tools(3)]
        choice = await answer(
            http, functions=functions, function_call={"name": "tool_2"}, logit_bias=bias
        )
        called = choice["message"]["function_call"]
        assert (called["name"], choice["finish_reason"]) == ("tool_2", "function_call")
        jsonschema.validate(json.loads(called["arguments"]), functions[2]["parameters"])


def test_processes_serve_forced_calls_and_a_killed_worker_changes_none(
    checkpoint: Path, bias: dict[str, float], tmp_path: Path
) -> None:
    flags = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    flags += ["--reasoning-parser", "qwen3", "--num-gpu-blocks-override", "512"]
    tools = random_tools(7)
    body = {**CHAT, "tools": tools, "tool_choice": "required", "logit_bias": bias, "seed": 5}
    body["chat_template_kwargs"] = {"think": True}
    with (
        Serving(tmp_path, checkpoint, *flags).wait_ready() as server,
        httpx.Client(base_url=server.url, timeout=120) as http,
    ):
        whole = http.post(PATH, json=body).json()["choices"][0]
        assert whole["finish_reason"] == "tool_calls"
        assert valid_calls(whole["message"], tools)
        with http.stream("POST", PATH, json={**body, "stream": True}) as response:
            lines = response.iter_lines()
            seen = [next(line for line in lines if line.startswith("data: {")) for _ in range(3)]
            server.children()["worker"].kill()
            made = put_together("\n".join([*seen, *lines]))
        for choice in (whole, made):
            for call in choice["message"]["tool_calls"]:
                call.pop("id", None)
                call.pop("type", None)
        assert made["message"]["tool_calls"] == whole["message"]["tool_calls"]
        assert made["message"]["reasoning"] == whole["message"]["reasoning"]
