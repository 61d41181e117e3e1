"""The items of a request for a response, as messages of chat."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taco_gateway.protocol.responses_api.input_items import InputField
from taco_gateway.protocol.responses_api.input_messages import chat_messages
from taco_proto.errors import InvalidParameterError

USER = {"role": "user", "content": "hi"}
DEVELOPER = {"role": "developer", "content": [{"type": "input_text", "text": "be brief"}]}


def messages(items: Any, instructions: str | None = None) -> list[dict[str, Any]]:
    return chat_messages(InputField.model_validate({"input": items}).input, instructions)


def said(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def thought(text: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"id": "rs_1", "type": "reasoning", "summary": [], "content": content, **fields}


def called(call_id: str, name: str = "f", arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def result(call_id: str, output: Any = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def input_text(value: str) -> dict[str, str]:
    return {"type": "input_text", "text": value}


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def call(call_id: str, name: str = "f", arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "function": {"name": name, "arguments": arguments}}


def output(call_id: str, content: Any = "ok", name: str = "f") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": content}


CONVERSATIONS: list[tuple[str, Any, str | None, list[dict[str, Any]]]] = [
    ("a text", "hi", None, [USER]),
    ("instructions", "hi", "be kind", [{"role": "system", "content": "be kind"}, USER]),
    ("no instructions", "hi", "", [USER]),
    ("only instructions", [], "be kind", [{"role": "system", "content": "be kind"}]),
    (
        "instructions and a message of the developer",
        [DEVELOPER, USER],
        "be kind",
        [{"role": "developer", "content": [text("be kind"), text("be brief")]}, USER],
    ),
    (
        "two leading messages",
        [{"role": "system", "content": "a"}, DEVELOPER, USER],
        None,
        [{"role": "system", "content": [text("a"), text("be brief")]}, USER],
    ),
    (
        "a later message of the developer",
        [USER, DEVELOPER],
        "be kind",
        [
            {"role": "system", "content": "be kind"},
            USER,
            {"role": "developer", "content": [text("be brief")]},
        ],
    ),
    (
        "one turn of the model",
        [USER, thought("hm"), said("wait"), called("1"), called("2", "g", '{"a": 1}')],
        None,
        [
            USER,
            {
                "role": "assistant",
                "reasoning_content": "hm",
                "content": [text("wait")],
                "tool_calls": [call("1"), call("2", "g", '{"a": 1}')],
            },
        ],
    ),
    (
        "calls after results are another turn",
        [USER, called("1"), result("1"), thought("hm"), called("2", "g"), result("2"), said("so")],
        None,
        [
            USER,
            {"role": "assistant", "tool_calls": [call("1")]},
            output("1"),
            {"role": "assistant", "reasoning_content": "hm", "tool_calls": [call("2", "g")]},
            output("2", name="g"),
            {"role": "assistant", "content": [text("so")]},
        ],
    ),
    (
        "a text behind a call does not part it from its result",
        [USER, called("1"), said("wait"), result("1")],
        None,
        [
            USER,
            {"role": "assistant", "tool_calls": [call("1")], "content": [text("wait")]},
            output("1"),
        ],
    ),
    (
        "reasoning behind a text",
        [USER, said("wait"), thought("hm"), said("so")],
        None,
        [
            USER,
            {"role": "assistant", "content": [text("wait")]},
            {"role": "assistant", "reasoning_content": "hm", "content": [text("so")]},
        ],
    ),
    (
        "reasoning that only OpenAI can read",
        [USER, {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}, said("so")],
        None,
        [USER, {"role": "assistant", "content": [text("so")]}],
    ),
    (
        "a summary",
        [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}],
        None,
        [{"role": "assistant", "reasoning_content": "hm"}],
    ),
    (
        "results of other forms",
        [called("1"), called("2"), result("2", []), result("1", [input_text("x")])],
        None,
        [
            {"role": "assistant", "tool_calls": [call("1"), call("2")]},
            output("2", ""),
            output("1", [text("x")]),
        ],
    ),
]


@pytest.mark.parametrize(
    ("items", "instructions", "expected"),
    [case[1:] for case in CONVERSATIONS],
    ids=[case[0] for case in CONVERSATIONS],
)
def test_conversations(
    items: Any, instructions: str | None, expected: list[dict[str, Any]]
) -> None:
    assert messages(items, instructions) == expected


def test_cache_marks_stay_with_their_text() -> None:
    mark = {"type": "ephemeral", "ttl": "1h"}
    (only,) = messages([{**DEVELOPER, "cache_control": mark}], "be kind")
    assert only["content"] == [text("be kind"), {**text("be brief"), "cache_control": mark}]
    part = {"type": "input_text", "text": "x", "cache_control": mark}
    (user,) = messages([{"role": "user", "content": [part]}])
    assert user["content"] == [{**text("x"), "cache_control": mark}]
    (user,) = messages([{**USER, "cache_control": mark}])
    assert user == {**USER, "cache_control": mark}


@pytest.mark.parametrize(
    "items", [[result("1")], [called("2"), result("1")], [result("1"), called("1")]]
)
def test_a_result_needs_its_call(items: Any) -> None:  # fmt: skip
    with pytest.raises(
        InvalidParameterError, match=r"stores no responses: send the items"
    ) as error:
        messages([USER, *items])
    place = items.index(result("1")) + 1
    assert error.value.param == f"input[{place}].call_id"


kinds = st.lists(st.sampled_from(["user", "developer", "assistant", "reasoning", "call", "result"]))


@given(kinds)
def test_no_text_is_lost_or_changes_its_order(chosen: list[str]) -> None:
    items: list[dict[str, Any]] = []
    given_texts: dict[str, list[str]] = {}
    for number, kind in enumerate(chosen):
        name = f"{kind} {number}"
        if kind == "result":
            calls = [item["call_id"] for item in items if item["type"] == "function_call"]
            if not calls:
                continue
            items.append(result(calls[-1], name))
        elif kind == "reasoning":
            items.append(thought(name))
        elif kind == "call":
            items.append(called(name))
        else:
            items.append({"type": "message", "role": kind, "content": name})
        given_texts.setdefault(kind, []).append(name)
    found: dict[str, list[str]] = {}
    for message in messages(items):
        role = "result" if message["role"] == "tool" else message["role"]
        if reasoning := message.get("reasoning_content"):
            found.setdefault("reasoning", []).append(reasoning)
        if content := message.get("content"):
            parts = [content] if isinstance(content, str) else [part["text"] for part in content]
            found.setdefault(role, []).extend(parts)
        for each in message.get("tool_calls", ()):
            found.setdefault("call", []).append(each["id"])
    assert found == given_texts
