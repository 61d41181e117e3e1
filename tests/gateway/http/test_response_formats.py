"""Formats of calls and reasoning over HTTP: marker tokens, templates, plug-ins, `/tokenize`."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken

from support.gateway_app import App, AppMaker, write_tokenizer
from support.response_samples import ARGUMENTS, SAMPLES, TOOLS, response_template
from support.scripted_engine import Script, prompt_of, replay
from taco_gateway.engine.engine_client import SequenceUpdate
from taco_gateway.text.tokenizer.loading import load_tokenizer
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.config import ModelConfig
from taco_proto.errors import ConfigurationError
from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import FinishReason, GenerateRequest

CHAT = "/v1/chat/completions"
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
TEMPLATE = (
    "{% for t in tools %}{{ t.function.name }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
)
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
TEXT = "<think>\nhm\n</think>\n\nSay <tool> ü.\n" + SAMPLES["hermes"].write(2)
CALLS = [("f", ARGUMENTS[0]), ("g", ARGUMENTS[1])]


def with_markers(path: Path, *, special: bool, template: Any = None) -> Tokenizer:
    """A tokenizer whose markers are tokens, and whose checkpoint may have a response template."""
    write_tokenizer(path)
    file, config = path / "tokenizer.json", path / "tokenizer_config.json"
    backend = tokenizers.Tokenizer.from_file(str(file))
    backend.add_tokens([AddedToken(text, special=special) for text in MARKERS])
    backend.save(str(file))
    settings = json.loads(config.read_text())
    if template is not None:
        settings["response_template"] = template
    config.write_text(json.dumps(settings))
    tokenizer = load_tokenizer(ModelConfig(model=str(path)))
    assert tokenizer is not None
    return tokenizer


def with_logprobs(ids: list[int], group: int) -> Script:
    def script(request: GenerateRequest) -> list[SequenceUpdate]:
        steps = []
        for at in range(0, len(ids), group):
            some = ids[at : at + group]
            count = len(some)
            columns = LogprobColumns([1] * count, some, [-0.5] * count, [1] * count)
            steps.append(SequenceUpdate(0, some, logprobs=columns))
        steps[-1].finish_reason = FinishReason.STOP
        return steps

    return script


async def message_of(app: App, **body: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    response = await app.http.post(CHAT, json={"messages": HELLO, "tools": TOOLS, **body})
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    return choice["message"], choice


def calls_of(message: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or []
    ]


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("group", [1, 3, 16])
async def test_markers_that_are_tokens(
    make_app: AppMaker, tmp_path: Path, special: bool, skips: bool, group: int
) -> None:
    """The text of a special token is not in the answer, and it divides the answer all the same."""
    tokenizer = with_markers(tmp_path, special=special)
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    assert all(tokenizer.added_tokens[marker] in ids for marker in MARKERS)
    app = make_app(
        with_logprobs(ids, group),
        own_tokenizer=tokenizer,
        chat_template=TEMPLATE,
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
        reasoning_parser="qwen3",
    )
    body = {"skip_special_tokens": skips, "logprobs": True}
    message, choice = await message_of(app, **body)
    assert (message["reasoning"], message["content"]) == ("hm", "Say <tool> ü.")
    assert calls_of(message) == CALLS
    assert choice["finish_reason"] == "tool_calls"
    assert len(choice["logprobs"]["content"]) == len(ids)

    events = await app.events(CHAT, messages=HELLO, tools=TOOLS, **body)
    entries: list[Any] = []
    arguments = ["", ""]
    for event in events:
        (part,) = event["choices"]
        entries += (part.get("logprobs") or {}).get("content") or []
        for call in part["delta"].get("tool_calls") or []:
            arguments[call["index"]] += call["function"]["arguments"]
        carries = part["delta"] or part["finish_reason"] or part.get("logprobs")
        assert carries, "an empty event"
    assert entries == choice["logprobs"]["content"]
    assert arguments == list(ARGUMENTS)


async def test_auto_reads_the_checkpoints_template(make_app: AppMaker, tmp_path: Path) -> None:
    template = response_template(SAMPLES["jamba"], "mistral")
    tokenizer = with_markers(tmp_path, special=False, template=template)
    text = "[THINK]hm[/THINK]ok" + SAMPLES["jamba"].write(2)
    app = make_app(
        replay(tokenizer.encode(text, add_special_tokens=False), FinishReason.STOP),
        own_tokenizer=tokenizer,
        chat_template=TEMPLATE,
        enable_auto_tool_choice=True,
        tool_call_parser="auto",
        reasoning_parser="auto",
    )
    message, _ = await message_of(app)
    assert (message["reasoning"], message["content"]) == ("hm", "ok")
    assert calls_of(message) == CALLS


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "has no response_template in tokenizer_config.json; choose one of hermes, "),
        ([1], "cannot be used: it is not an object; choose one of "),
        ({"fields": {"tool_calls": {"content": "yaml"}}}, "the content 'yaml' cannot be streamed"),
    ],
)
def test_auto_that_cannot_be_used(
    make_app: AppMaker, tmp_path: Path, template: Any, reason: str
) -> None:
    tokenizer = with_markers(tmp_path, special=False, template=template)
    with pytest.raises(ConfigurationError) as error:
        make_app(
            replay([50]),
            own_tokenizer=tokenizer,
            enable_auto_tool_choice=True,
            tool_call_parser="auto",
        )
    assert str(error.value).startswith("--tool-call-parser auto: ")
    assert reason in str(error.value)


async def test_a_class_of_a_plugin(
    make_app: AppMaker, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    plugin = tmp_path / "shout.py"
    plugin.write_text(
        "from taco_gateway.parser_plugins import *\n"
        "class Shout(ToolParser):\n"
        "    def feed(self, text):\n"
        "        for char in text:\n"
        "            if char == '!':\n"
        "                yield CallStart('f')\n"
        "                yield CallArguments('{}')\n"
        "                yield CallEnd()\n"
        "            else:\n"
        "                yield ContentPart(char)\n"
        "TOOL_FORMATS = {'shout': Shout}\n"
    )
    app = make_app(
        replay(tokenizer.encode("say it! and more", add_special_tokens=False), FinishReason.STOP),
        chat_template=TEMPLATE,
        enable_auto_tool_choice=True,
        tool_call_parser="shout",
        tool_parser_plugin=str(plugin),
    )
    message, choice = await message_of(app)
    assert (message["content"], calls_of(message)) == ("say it", [("f", "{}")])
    assert choice["finish_reason"] == "tool_calls"


async def test_tokenize_with_tools(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    app = make_app(replay([50]), chat_template=TEMPLATE)

    async def tokens(**body: Any) -> str:
        response = await app.http.post("/tokenize", json={"messages": HELLO, **body})
        assert response.status_code == 200, response.text
        return tokenizer.decode(response.json()["tokens"])

    assert await tokens() == "user: Hello\n"
    assert await tokens(tools=TOOLS) == "f\ng\nuser: Hello\n"
    assert await tokens(tools=TOOLS, tool_choice="none") == "user: Hello\n"
    functions = [tool["function"] for tool in TOOLS]
    assert await tokens(functions=functions) == "f\ng\nuser: Hello\n"
    chat = make_app(
        replay([50]),
        chat_template=TEMPLATE,
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
    )
    await message_of(chat)
    assert tokenizer.decode(prompt_of(chat.engine.requests[-1])) == await tokens(tools=TOOLS)


async def test_tokenize_rejects_bad_tools(make_app: AppMaker) -> None:
    app = make_app(replay([50]), chat_template=TEMPLATE)
    for tools in ([{"type": "function"}], [1], "f", [{"type": "x", "function": {"name": "f"}}]):
        response = await app.http.post("/tokenize", json={"messages": HELLO, "tools": tools})
        assert response.status_code == 400
        assert "tools" in response.json()["error"]["param"]
    plain = make_app(replay([50]))
    response = await plain.http.post("/tokenize", json={"messages": HELLO, "tools": TOOLS})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools"
