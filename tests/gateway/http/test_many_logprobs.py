"""Answers with many log probabilities are written beside the event loop, and as others are."""

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from support.gateway_app import App, AppMaker
from support.patience import PATIENCE_SECONDS
from support.scripted_engine import MODEL_INFO, Step
from taco_gateway.engine.engine_client import SequenceUpdate
from taco_gateway.protocol import logprob_text
from taco_gateway.text.output import token_logprobs
from taco_gateway.text.output.token_logprobs import Candidate, UnreadCandidates
from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import FinishReason, GenerateRequest

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
INFO = replace(MODEL_INFO, max_logprobs=1000)
NUM_TOP = 900
USER = {"role": "user", "content": "Hello"}
WIDE: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [USER], "logprobs": True, "top_logprobs": NUM_TOP}),
    (CHAT, {"messages": [USER], "prompt_logprobs": NUM_TOP}),
    (CHAT, {"messages": [USER], "logprobs": True, "top_logprobs": NUM_TOP, "n": 2,
            "prompt_logprobs": NUM_TOP}),
    (COMPLETIONS, {"prompt": "a b", "logprobs": NUM_TOP}),
    (COMPLETIONS, {"prompt": "a b", "logprobs": NUM_TOP, "echo": True, "n": 2}),
    (COMPLETIONS, {"prompt": ["a b c d e f", "c"], "prompt_logprobs": NUM_TOP}),
    (COMPLETIONS, {"prompt": "a b", "logprobs": NUM_TOP, "return_tokens_as_token_ids": True}),
]  # fmt: skip


def columns(num_rows: int, num_top: int, first: int) -> LogprobColumns:
    """Rows of which the token is among the candidates."""
    found = LogprobColumns()
    for row in range(num_rows):
        ids = [first + row, *range(5, 5 + num_top)]
        logprobs = [-0.5, *(-0.1 * k for k in range(num_top - 1)), float("-inf")]
        found.append_row(ids, logprobs, [first + row, *range(1, num_top + 1)])
    return found


def script(request: GenerateRequest) -> Iterator[Step]:
    params = request.sampling
    num_prompt = len(request.token_ids) // 4
    if params.prompt_logprobs is not None:
        rows = columns(num_prompt - 1, params.prompt_logprobs, 60)
        yield SequenceUpdate(0, [], prompt_logprobs=rows)
    for index in range(params.num_outputs):
        rows_of_tokens = None
        if params.logprobs is not None:
            rows_of_tokens = columns(3, params.logprobs, 50 + index)
        tokens = [50 + index, 51 + index, 52 + index]
        yield SequenceUpdate(
            index, tokens, finish_reason=FinishReason.LENGTH, logprobs=rows_of_tokens
        )


def without_ids(answer: Any) -> Any:
    """The same without what differs between requests."""
    return {name: value for name, value in answer.items() if name not in ("id", "created")}


async def whole(app: App, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = await app.http.post(path, json={"max_tokens": 3, **body})
    assert response.status_code == 200, response.text[:500]
    length = response.headers.get("content-length")
    assert length == str(len(response.content))
    found: dict[str, Any] = without_ids(response.json())
    return found


async def streamed(app: App, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    return [without_ids(event) for event in await app.events(path, max_tokens=3, **body)]


@pytest.mark.parametrize(("path", "body"), WIDE)
async def test_the_answer_does_not_depend_on_who_writes_it(
    make_app: AppMaker, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(script, info=INFO)
    answers = []
    for limit in (10**9, 100):
        monkeypatch.setattr(logprob_text, "MAX_ENTRIES", limit)
        monkeypatch.setattr(token_logprobs, "MAX_READ_ENTRIES", limit)
        answers.append(await whole(app, path, body))
        if "prompt_logprobs" not in body:
            answers.append({"events": await streamed(app, path, body)})
    middle = len(answers) // 2
    assert answers[:middle] == answers[middle:]
    assert len(json.dumps(answers[0])) > NUM_TOP * 10


CASES = [(*case, streams) for case in WIDE for streams in (False, True)
         if not (streams and "prompt_logprobs" in case[1])]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "streams"), CASES)
async def test_others_are_served_while_it_is_written(
    make_app: AppMaker,
    path: str,
    body: dict[str, Any],
    streams: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each piece waits until another request has been answered, which the event loop has to do."""
    app = make_app(script, info=INFO)
    loop_thread = threading.current_thread()
    begun, answered = asyncio.Event(), threading.Event()
    loop, read = asyncio.get_running_loop(), UnreadCandidates._read
    num_pieces = 0

    def read_elsewhere(row: UnreadCandidates, start: int, end: int) -> list[Candidate]:
        nonlocal num_pieces
        if end - start > 1:
            assert threading.current_thread() is not loop_thread
            num_pieces += 1
            loop.call_soon_threadsafe(begun.set)
            assert answered.wait(PATIENCE_SECONDS)
        return read(row, start, end)

    monkeypatch.setattr(UnreadCandidates, "_read", read_elsewhere)
    ask = streamed if streams else whole
    task = asyncio.create_task(ask(app, path, body))
    await asyncio.wait_for(begun.wait(), PATIENCE_SECONDS)
    other = await whole(app, COMPLETIONS, {"prompt": "x"})
    assert other["choices"][0]["finish_reason"] == "length"
    assert not task.done()
    answered.set()
    await task
    assert num_pieces > 1
