"""With any tokens, the events of a response add up to the whole response."""

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.gateway_app import App, AppMaker
from support.response_events import events, rebuilt, streamed, whole, without_ids
from support.scripted_engine import Script, Step, replay
from taco_gateway.engine.engine_client import SequenceUpdate
from taco_gateway.http import response_events
from taco_gateway.protocol import logprob_text
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import FinishReason, GenerateRequest

TEMPLATE = (
    "{% for t in tools %}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
)
TOOLS = [{"type": "function", "name": "f"}, {"type": "function", "name": "g"}]
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
SNIPPETS = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {"a": "'),
    *('"}}', '{"name": "g", "arguments": {}}', "hm", " ", "\n", "ü", '"', "<", "the lazy dog"),
]


def in_pieces(token_ids: list[int], sizes: list[int], finish: FinishReason) -> Script:
    """Gives the tokens in pieces of these sizes, then one by one, with log probabilities."""

    def script(request: GenerateRequest) -> Iterator[Step]:
        rest, left = list(token_ids), list(sizes)
        while rest:
            size = left.pop(0) if left else 1
            piece, rest = rest[:size], rest[size:]
            logprobs = None
            if (num_top := request.sampling.logprobs) is not None:
                logprobs = columns(piece, num_top)
            reason = FinishReason.RUNNING if rest else finish
            yield SequenceUpdate(0, piece, finish_reason=reason, logprobs=logprobs)

    return script


def columns(token_ids: list[int], num_top: int) -> LogprobColumns:
    found = LogprobColumns()
    for token_id in token_ids:
        entries = [token_id, *range(5, 5 + num_top)]
        found.append_row(entries, [-0.5 * k for k in range(len(entries))], [*range(len(entries))])
    return found


bodies = st.fixed_dictionaries(
    {"input": st.just("x")},
    optional={
        "tools": st.just(TOOLS),
        "parallel_tool_calls": st.booleans(),
        "include_reasoning": st.booleans(),
        "stop": st.sampled_from(["lazy", "}}", ["</", "ü"]]),
    },
)


@pytest.mark.slow
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    bodies,
    st.lists(st.sampled_from(SNIPPETS), min_size=1, max_size=12),
    st.lists(st.integers(1, 5)),
    st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
    st.booleans(),
)
def test_events_add_up_to_the_response(
    make_app: AppMaker,
    tokenizer: Tokenizer,
    body: dict[str, Any],
    snippets: list[str],
    sizes: list[int],
    finish: FinishReason,
    with_logprobs: bool,
) -> None:
    async def both() -> None:
        token_ids = tokenizer.encode("".join(snippets), add_special_tokens=False)
        app = make_app(
            in_pieces(token_ids, sizes, finish),
            chat_template=TEMPLATE,
            enable_auto_tool_choice=True,
            tool_call_parser="hermes",
            reasoning_parser="qwen3",
        )
        fields = body | (LOGPROBS if with_logprobs else {})
        response = await whole(app, **fields)
        assert without_ids(await streamed(app, **fields)) == without_ids(response)
        chat = await app.http.post("/v1/chat/completions", json=as_chat(body))
        check_parts(response, chat.json()["choices"][0]["message"])
        if with_logprobs and "stop" not in body:
            check_logprobs(response)

    asyncio.run(both())


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in body.items() if name not in ("input", "tools")}
    if "tools" in body:
        fields["tools"] = [{"type": "function", "function": {"name": name}} for name in "fg"]
    return {"messages": [{"role": "user", "content": "x"}], **fields}


def check_parts(response: dict[str, Any], message: dict[str, Any]) -> None:
    """The response has the reasoning, the content and the calls of the chat message."""
    output = response["output"]
    texts = {"reasoning": "", "message": ""}
    for item in output:
        if item["type"] != "function_call":
            texts[item["type"]] += item["content"][0]["text"]
    assert texts["message"] == (message["content"] or "")
    assert texts["reasoning"] == message.get("reasoning", "")
    calls = [(i["name"], i["arguments"]) for i in output if i["type"] == "function_call"]
    expected = [call["function"] for call in message.get("tool_calls", ())]
    assert calls == [(call["name"], call["arguments"]) for call in expected]


def check_logprobs(response: dict[str, Any]) -> None:
    """The tokens of a message's log probabilities are its text, but for the ends of tokens."""
    for item in response["output"]:
        if item["type"] == "message":
            (part,) = item["content"]
            joined = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"])
            assert part["text"].encode() in joined
            first, last = (part["logprobs"][k]["bytes"] for k in (0, -1)) if joined else ([], [])
            assert len(joined) <= len(part["text"].encode()) + len(first) + len(last)


async def test_log_probabilities_of_a_text(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("the fox… ü 😀", add_special_tokens=False)
    app = make_app(in_pieces(token_ids, [2, 3], FinishReason.STOP))
    for read in (whole, streamed):
        (message,) = (await read(app, input="x", **LOGPROBS))["output"]
        (part,) = message["content"]
        assert len(part["logprobs"]) == len(token_ids)
        joined = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"])
        assert joined.decode() == part["text"] == "the fox… ü 😀"
        assert {len(entry["top_logprobs"]) for entry in part["logprobs"]} == {2}
    assert app.engine.requests[0].sampling.logprobs == 2


async def test_there_are_no_log_probabilities_without_the_field(
    make_app: AppMaker, tokenizer: Tokenizer
) -> None:
    app = make_app(in_pieces(tokenizer.encode("the fox"), [], FinishReason.STOP))
    (message,) = (await streamed(app, input="x"))["output"]
    assert message["content"][0]["logprobs"] == []
    assert app.engine.requests[0].sampling.logprobs is None


@pytest.mark.parametrize("read", [whole, streamed])
async def test_many_log_probabilities_are_written_in_a_thread(
    make_app: AppMaker, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, read: Any
) -> None:
    token_ids = tokenizer.encode("the quick brown fox", add_special_tokens=False)
    app = make_app(in_pieces(token_ids, [3, 3], FinishReason.STOP))
    few = await read(app, input="x", **LOGPROBS)
    calls: list[Any] = []

    async def to_thread(work: Any, *args: Any) -> Any:
        calls.append(work)
        return await asyncio.to_thread(work, *args)

    monkeypatch.setattr(logprob_text, "MAX_ENTRIES", 4)
    for module in (logprob_text, response_events):
        monkeypatch.setattr(module, "asyncio", SimpleNamespace(to_thread=to_thread))
    many = await read(app, input="x", **LOGPROBS)
    assert calls
    assert without_ids(many) == without_ids(few)


async def test_deltas_come_with_their_tokens(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    """The text of a token is not held until the next one."""
    token_ids = tokenizer.encode("the quick brown fox", add_special_tokens=False)
    app = make_app(replay(token_ids, FinishReason.STOP))
    found = await events(app, input="x")
    deltas = [event["delta"] for event in found if event["type"] == "response.output_text.delta"]
    assert deltas == [tokenizer.decode([token_id]) for token_id in token_ids]
    assert json.dumps(rebuilt(found))


async def test_events_of_a_call(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    answer = 'so<tool_call>{"name": "g", "arguments": {}}</tool_call>'
    app: App = make_app(
        replay(tokenizer.encode(answer, add_special_tokens=False), FinishReason.STOP),
        chat_template=TEMPLATE,
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
    )
    kinds = [event["type"] for event in await events(app, input="x", tools=TOOLS)]
    once = [kind for k, kind in enumerate(kinds) if not k or kinds[k - 1] != kind]
    assert once == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
