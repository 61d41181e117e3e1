"""With any parameters, the chunks of a stream add up to the whole answer."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.gateway_app import App, AppMaker
from support.scripted_engine import Step, prompt_of
from taco_gateway.engine.engine_client import SequenceUpdate
from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import FinishReason, GenerateRequest

COLUMNS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
VOCABULARY = 300


class Model:
    """Gives each sequence its own text, the same after every prompt, in pieces of any size."""

    def __init__(self, sequences: list[list[list[int]]]) -> None:
        self._sequences = sequences

    def __call__(self, request: GenerateRequest) -> Iterator[Step]:
        sampling = request.sampling
        if sampling.prompt_logprobs is not None:
            rows = _columns(prompt_of(request)[1:], sampling.prompt_logprobs)
            yield SequenceUpdate(0, [], prompt_logprobs=rows)
        pieces = [list(self._sequences[i % len(self._sequences)]) for i in range(sampling.n)]
        while any(pieces):
            for index, rest in enumerate(pieces):
                if not rest:
                    continue
                tokens = rest.pop(0)
                logprobs = None
                if sampling.logprobs is not None:
                    logprobs = _columns(tokens, sampling.logprobs)
                reason = FinishReason.RUNNING if rest else FinishReason.LENGTH
                yield SequenceUpdate(
                    index, tokens, finish_reason=reason, num_cached_tokens=index, logprobs=logprobs
                )


def _columns(token_ids: list[int], num_top: int) -> LogprobColumns:
    columns = LogprobColumns()
    for token_id in token_ids:
        top = [(token_id + k) % VOCABULARY for k in range(num_top)]
        entries = [token_id, *top]
        columns.append_row(entries, [-0.5 * k for k in range(len(entries))], [*range(len(entries))])
    return columns


bodies = st.fixed_dictionaries(
    {"prompt": st.sampled_from(["The fox", [40, 41], ["a", "lazy dog"], [[5], [6, 7], [8, 9]]])},
    optional={
        "n": st.integers(1, 3),
        "echo": st.booleans(),
        "logprobs": st.integers(0, 2),
        "stop": st.sampled_from(["e", "the", ["\u00fc", "x"], "zy"]),
        "include_stop_str_in_output": st.booleans(),
        "return_tokens_as_token_ids": st.booleans(),
        "skip_special_tokens": st.booleans(),
    },
)
token_pieces = st.lists(
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4), min_size=1, max_size=6
)


async def streamed(app: App, body: dict[str, Any]) -> tuple[dict[int, dict[str, Any]], Any]:
    *events, last = await app.events(
        "/v1/completions", **body, stream_options={"include_usage": True}
    )
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        (chunk,) = event["choices"]
        choice = choices.setdefault(chunk["index"], {"text": "", "logprobs": None})
        assert "finish_reason" not in choice, "a chunk behind the last one"
        choice["text"] += chunk["text"]
        if chunk["logprobs"] is not None:
            choice["logprobs"] = choice["logprobs"] or {name: [] for name in COLUMNS}
            for name in COLUMNS:
                choice["logprobs"][name] += chunk["logprobs"][name]
        if chunk["finish_reason"] is not None:
            choice |= {name: chunk[name] for name in ("finish_reason", "stop_reason")}
    return choices, last["usage"]


async def whole(app: App, body: dict[str, Any]) -> tuple[dict[int, dict[str, Any]], Any]:
    response = await app.http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    names = ("text", "logprobs", "finish_reason", "stop_reason")
    choices = {c["index"]: {name: c[name] for name in names} for c in answer["choices"]}
    return choices, answer["usage"]


@pytest.mark.slow
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(body=bodies, sequences=st.lists(token_pieces, min_size=1, max_size=3))
def test_stream_equals_whole(
    make_app: AppMaker, body: dict[str, Any], sequences: list[list[list[int]]]
) -> None:
    async def both() -> None:
        app = make_app(Model(sequences))
        body["max_tokens"] = 100
        assert await streamed(app, dict(body)) == await whole(app, dict(body))

    asyncio.run(both())
