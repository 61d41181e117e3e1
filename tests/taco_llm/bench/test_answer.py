"""Parsing streamed answers: chunks with tokens, and invalid streams."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.canned_server import events, piece
from taco_llm.bench.answer import StreamedAnswer
from taco_llm.bench.timeline import Timeline

USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}


def read(body: bytes, status: int = 200) -> tuple[StreamedAnswer, Timeline]:
    """The clock shows how many lines have come."""
    timeline = Timeline()
    answer = StreamedAnswer(timeline)
    answer.begin(status)
    for number, line in enumerate(body.splitlines(keepends=True)):
        answer.feed(line, float(number))
    return answer, timeline


def delta(content: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": content, "finish_reason": finish_reason}]}


def test_a_completion() -> None:
    stream = events(piece("a"), piece("bc"), piece("", "length"), USAGE, "[DONE]")
    answer, timeline = read(stream)
    assert answer.error is None
    assert answer.text == "abc"
    assert timeline.chunks == [0.0, 2.0]
    assert timeline.end == 4.0  # the chunk with the finish reason; usage is no part of the answer
    assert (timeline.prompt_tokens, timeline.output_tokens) == (7, 5)


def test_the_last_piece_may_come_with_the_finish_reason() -> None:
    _, timeline = read(events(piece("a"), piece("b", "stop"), "[DONE]"))
    assert timeline.chunks == [0.0, 2.0]


def test_a_token_without_text_is_a_token() -> None:
    _, timeline = read(events(piece(""), piece("b"), piece("", "stop"), "[DONE]"))
    assert timeline.chunks == [0.0, 2.0]


def test_a_chat() -> None:
    call = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]}
    stream = events(
        delta({"role": "assistant", "content": ""}),
        delta({"reasoning_content": "hm"}),
        delta({"content": "yes"}),
        delta(call),
        delta({}, "stop"),
        "[DONE]",
    )
    answer, timeline = read(stream)
    assert answer.error is None
    assert timeline.chunks == [2.0, 4.0, 6.0]  # neither the role nor the end
    assert answer.text == "hmyesf{}"


def test_a_role_may_come_with_the_first_content() -> None:
    _, timeline = read(events(delta({"role": "assistant", "content": "x"}), "[DONE]"))
    assert timeline.chunks == [0.0]


def test_comments_and_unknown_fields_are_ignored() -> None:
    stream = b": ping\r\n\r\nevent: x\r\nid: 1\r\ndata:" + json.dumps(piece("a", "stop")).encode()
    answer, timeline = read(stream + b"\r\n\r\n")
    assert answer.error is None
    assert timeline.chunks == [4.0]


@given(st.lists(st.integers(0, 400)))
def test_chunk_boundaries_of_the_network_do_not_matter(cuts: list[int]) -> None:
    stream = events(piece("ä"), piece("b"), piece("c", "stop"), USAGE, "[DONE]")
    timeline = Timeline()
    answer = StreamedAnswer(timeline)
    answer.begin(200)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for start, end in pairwise(edges):
        answer.feed(stream[start:end], 1.0)
    assert answer.error is None
    assert answer.text == "äbc"
    assert timeline.chunks == [1.0] * 3
    assert timeline.output_tokens == 5


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (b"", "not an event stream"),
        (b'{"choices": []}\n', "not an event stream"),
        (events(piece("a")), "the stream broke off"),
        (events(piece("a"), {"error": {"message": "out of\nblocks"}}, "[DONE]"), "out of blocks"),
        (events({"error": "busy"}), "busy"),
        (events("{"), "an event of the stream is not an OpenAI chunk: {"),
        (events('"text"'), "an event of the stream is not an OpenAI chunk"),
        (events({"choices": [7]}), "an event of the stream is not an OpenAI chunk"),
        (events({"usage": {"x": 1}}), "an event of the stream is not an OpenAI chunk"),
    ],
)
def test_a_bad_stream_is_an_error(stream: bytes, message: str) -> None:
    answer, _ = read(stream)
    assert answer.error is not None
    assert message in answer.error


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no such model"}}', "HTTP 404: no such model"),
        (b'{"error": "no such model"}', "HTTP 404: no such model"),
        (b'{"message": "no such model"}', "HTTP 404: no such model"),
        (b'{"detail": "no such model"}', "HTTP 404: no such model"),
        (b"<html>Not\n found</html>", "HTTP 404: <html>Not found</html>"),
        (b"[1]", "HTTP 404: [1]"),
        (b"x" * 1000, "HTTP 404: " + "x" * 300 + "…"),
    ],
)
def test_an_error_contains_the_servers_message(body: bytes, message: str) -> None:
    assert read(body, 404)[0].error == message


def test_no_answer_at_all() -> None:
    error = StreamedAnswer(Timeline()).error
    assert error == "the server closed the connection without an answer"
