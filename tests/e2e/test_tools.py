"""Tool calls and reasoning from processes, with the formats of the checkpoint or of a plug-in."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response

from support.patience import PATIENCE_SECONDS
from support.reciting_model import PROMPT_END, make_reciting_checkpoint
from support.response_samples import SAMPLES, response_template
from support.serving import Serving

NAME = "reciting"
ARGUMENTS = ('{"city":  "Åre </tool_calls>"}', "{}")
MARKERS = ("<tool_calls>", "</tool_calls>")
PIECES = [
    *("<think>", "\nWhich ", "city?\n", "</think>", "\n\nLet me ", "see.", "\n"),
    *("<tool_calls>", '[\n{"name": "weather", ', '"arguments": {"city":  "Åre ', "</tool"),
    *('_calls>"', "}", '},\n {"name": "time"}', "\n]", "</tool_calls>"),
]
TEMPLATE = (
    "{% for t in tools %}{{ t.function.name }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}" + PROMPT_END + "{% endif %}"
)
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("weather", "time")
]
MESSAGES: list[Any] = [{"role": "user", "content": "How cold is it?"}]


def checkpoint(path: Path, **settings: Any) -> Path:
    return make_reciting_checkpoint(
        path, PIECES, special=MARKERS, chat_template=TEMPLATE, **settings
    )


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    directory = tmp_path_factory.mktemp("serve")
    model = checkpoint(
        directory / "model", response_template=response_template(SAMPLES["jamba"], "qwen3")
    )
    flags = ["--served-model-name", NAME, "--num-gpu-blocks-override", "64"]
    formats = ["--tool-call-parser", "auto", "--reasoning-parser", "auto"]
    with Serving(directory, model, "--enable-auto-tool-choice", *flags, *formats) as server:
        yield server.wait_ready()


@pytest.fixture(scope="module")
def client(serving: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, **body: Any) -> Any:
    return client.chat.completions.create(
        **{"model": NAME, "messages": MESSAGES, "tools": TOOLS, "temperature": 0, **body}
    )


def calls_of(message: Any) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in message.tool_calls]


EXPECTED = [("weather", ARGUMENTS[0]), ("time", ARGUMENTS[1])]


def test_calls_of_the_openai_client(client: openai.OpenAI) -> None:
    answer = ask(client, logprobs=True)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.reasoning == "Which city?"
    assert choice.message.content == "Let me see."
    assert calls_of(choice.message) == EXPECTED
    assert len(choice.logprobs.content) == len(PIECES) + 1 == answer.usage.completion_tokens
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "-3"}
        for call in choice.message.tool_calls
    ]
    follow_up = [*MESSAGES, choice.message.model_dump(exclude_none=True), *results]
    assert calls_of(ask(client, messages=follow_up).choices[0].message) == EXPECTED


def test_a_stream_has_the_same_parts(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=NAME, messages=MESSAGES, tools=TOOLS, temperature=0
    ) as stream:
        reasoning = ""
        for event in stream:
            if event.type == "chunk" and event.chunk.choices:
                delta = event.chunk.choices[0].delta
                assert delta.model_dump(exclude_none=True) or event.chunk.choices[0].finish_reason
                reasoning += getattr(delta, "reasoning", None) or ""
        (choice,) = stream.get_final_completion().choices
    assert reasoning == "Which city?"
    assert choice.message.content == "Let me see."
    assert choice.message.tool_calls is not None
    assert calls_of(choice.message) == EXPECTED
    assert choice.finish_reason == "tool_calls"


def test_responses_have_the_same_parts(client: openai.OpenAI) -> None:
    tools: list[Any] = [{"type": "function", **tool["function"]} for tool in TOOLS]
    body: dict[str, Any] = {"model": NAME, "tools": tools, "temperature": 0, "store": False}
    history: list[Any] = list(MESSAGES)
    for _ in range(2):
        with client.responses.stream(**body, input=history) as stream:
            deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
            streamed = stream.get_final_response()
        whole = client.responses.create(**body, input=history)
        assert "".join(deltas) == streamed.output_text == whole.output_text == "Let me see."
        assert response_parts(streamed) == response_parts(whole) == ["Which city?", *EXPECTED]
        history += [item.model_dump() for item in whole.output]
        history += [
            {"type": "function_call_output", "call_id": item.call_id, "output": "-3"}
            for item in whole.output
            if item.type == "function_call"
        ]


def response_parts(response: Response) -> list[Any]:
    """The reasoning and the calls."""
    parts: list[Any] = []
    for item in response.output:
        if item.type == "reasoning":
            parts += [part.text for part in item.content or ()]
        elif item.type == "function_call":
            parts.append((item.name, item.arguments))
    return parts


def test_a_cut_call_and_one_call(client: openai.OpenAI) -> None:
    (choice,) = ask(client, max_tokens=PIECES.index("}")).choices
    assert choice.finish_reason == "length"
    assert calls_of(choice.message) == [("weather", '{"city":  "Åre </tool_calls>"')]
    (choice,) = ask(client, parallel_tool_calls=False).choices
    assert (choice.finish_reason, calls_of(choice.message)) == ("tool_calls", EXPECTED[:1])


def test_tokenize_applies_the_template_with_the_tools(serving: Serving) -> None:
    with httpx.Client(base_url=serving.url, timeout=PATIENCE_SECONDS) as http:
        given = http.post("/tokenize", json={"messages": MESSAGES, "tools": TOOLS}).json()
        text = http.post("/detokenize", json={"tokens": given["tokens"]}).json()["prompt"]
    assert text == f"weather\ntime\nuser: How cold is it?{PROMPT_END}"


def test_a_plugin_gives_the_format(tmp_path: Path) -> None:
    template = response_template(SAMPLES["jamba"], "qwen3")
    (tmp_path / "own.json").write_text(json.dumps(template))
    (tmp_path / "thoughts.py").write_text(
        "from taco_gateway.parser_plugins import ReasoningFormat\n"
        "REASONING_FORMATS = {'own': ReasoningFormat(opens=('<think>',), closes=('</think>',))}\n"
    )
    tools = ["--tool-parser-plugin", str(tmp_path / "own.json"), "--tool-call-parser", "own"]
    thoughts = ["--reasoning-parser-plugin", "thoughts.py", "--reasoning-parser", "own"]
    flags = ["--served-model-name", NAME, "--num-gpu-blocks-override", "64"]
    model = checkpoint(tmp_path / "model")
    with (
        Serving(tmp_path, model, "--enable-auto-tool-choice", *flags, *tools, *thoughts) as server,
        openai.OpenAI(base_url=f"{server.wait_ready().url}/v1", api_key="none") as client,
    ):
        message = ask(client).choices[0].message
        assert (message.reasoning, message.content) == ("Which city?", "Let me see.")
        assert calls_of(message) == EXPECTED


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "the checkpoint has no response_template in tokenizer_config.json"),
        (
            {"response_template": {"fields": {"tool_calls": {"content": "kv-lines"}}}},
            "fields.tool_calls: the content 'kv-lines' cannot be streamed as calls",
        ),
    ],
)
def test_auto_that_cannot_be_used_is_one_error(
    tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    model = checkpoint(tmp_path / "model", **settings)
    with Serving(
        tmp_path, model, "--enable-auto-tool-choice", "--tool-call-parser", "auto"
    ) as server:
        assert server.wait_ended() != 0
        assert f"--tool-call-parser auto: {reason}" in server.stderr.replace(
            "the checkpoint's response_template cannot be used: ", ""
        )
        assert "Traceback" not in server.stderr
