"""Prefix cache fields of HTTP requests, as they reach the engine."""

from typing import Any

import pytest

from support.gateway_app import App, AppMaker
from support.scripted_engine import prompt_of, replay
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.requests import GenerateRequest, PrefixPin

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
SYSTEM = {"role": "system", "content": "The quick brown fox."}
QUESTION = {"role": "user", "content": "jumps?"}


@pytest.fixture
def app(make_app: AppMaker) -> App:
    return make_app(replay([50]))


async def sent(app: App, path: str, **body: Any) -> GenerateRequest:
    response = await app.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return app.engine.requests[-1]


def pinned(tokenizer: Tokenizer, request: GenerateRequest) -> list[tuple[str, float]]:
    """The pinned texts and their seconds."""
    ids = prompt_of(request)
    return [
        (tokenizer.decode(ids[: pin.num_tokens], skip_special_tokens=False), pin.seconds)
        for pin in request.pins
    ]


async def test_a_mark_on_a_message_keeps_the_prompt_up_to_it(
    app: App, tokenizer: Tokenizer
) -> None:
    request = await sent(app, CHAT, messages=[SYSTEM | {"cache_control": MARK}, QUESTION])
    ((text, seconds),) = pinned(tokenizer, request)
    assert text.startswith("<|im_start|>system\nThe quick brown fox.<|im_end|>\n<|im_start|>")
    assert "jumps" not in text
    assert seconds == 300.0


async def test_a_mark_on_a_part_keeps_the_prompt_up_to_it(app: App, tokenizer: Tokenizer) -> None:
    parts = [{"type": "text", "text": "A fox."}, {"type": "text", "text": "A dog."}]
    parts[0]["cache_control"] = HOUR  # type: ignore[assignment]
    request = await sent(app, CHAT, messages=[SYSTEM, {"role": "user", "content": parts}])
    ((text, seconds),) = pinned(tokenizer, request)
    assert text.endswith("<|im_start|>user\nA fox.")
    assert seconds == 3600.0


async def test_marks_of_two_durations_keep_two_beginnings(app: App, tokenizer: Tokenizer) -> None:
    messages = [
        SYSTEM | {"cache_control": HOUR},
        QUESTION | {"cache_control": MARK},
        {"role": "assistant", "content": "over", "cache_control": MARK},
        QUESTION,
    ]
    request = await sent(app, CHAT, messages=messages)
    (longer, short), (shorter, long) = pinned(tokenizer, request)
    assert (short, long) == (300.0, 3600.0)
    assert "over<|im_end|>" in longer
    assert shorter == longer[: len(shorter)]
    assert "jumps" not in shorter


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"cache_control": MARK}, 300.0),
        ({"prompt_cache_retention": "24h"}, 86400.0),
        ({"cache_control": HOUR, "prompt_cache_retention": "24h"}, 86400.0),
        ({"cache_control": HOUR, "prompt_cache_retention": "in-memory"}, 3600.0),
    ],
)
async def test_a_whole_prompt_can_be_kept(
    app: App, tokenizer: Tokenizer, fields: dict[str, Any], seconds: float
) -> None:
    request = await sent(app, CHAT, messages=[SYSTEM, QUESTION], **fields)
    ((text, kept_for),) = pinned(tokenizer, request)
    assert text.endswith("<|im_start|>user\njumps?<|im_end|>")
    assert kept_for == seconds
    request = await sent(app, COMPLETIONS, prompt="The quick brown fox", **fields)
    assert request.pins == (PrefixPin(len(prompt_of(request)), seconds),)


async def test_each_prompt_of_several_is_kept(app: App) -> None:
    await sent(app, COMPLETIONS, prompt=[[5, 6], [7, 8, 9]], cache_control=MARK)
    assert [r.pins for r in app.engine.requests] == [
        (PrefixPin(2, 300.0),),
        (PrefixPin(3, 300.0),),
    ]


async def test_a_truncated_prompt_is_not_pinned(app: App) -> None:
    for body in (
        {"prompt": [5] * 9, "truncate_prompt_tokens": 8},
        {"prompt": [5] * 8, "truncate_prompt_tokens": 8},
    ):
        await sent(app, COMPLETIONS, cache_control=MARK, **body)
    assert [len(r.pins) for r in app.engine.requests] == [0, 1]


async def test_marks_are_not_a_part_of_the_prompt(app: App) -> None:
    parts = [{"type": "text", "text": "A fox.", "cache_control": None}]
    marked = await sent(app, CHAT, messages=[SYSTEM | {"cache_control": MARK}, QUESTION])
    plain = await sent(app, CHAT, messages=[SYSTEM, QUESTION])
    assert marked.token_ids == plain.token_ids
    assert not plain.pins
    assert not (await sent(app, CHAT, messages=[{"role": "user", "content": parts}])).pins


async def test_a_cache_key_names_prompts_that_begin_alike(app: App) -> None:
    for path, prompt in ((CHAT, {"messages": [QUESTION]}), (COMPLETIONS, {"prompt": "x"})):
        assert (await sent(app, path, prompt_cache_key="k", **prompt)).prompt_cache_key == "k"
        assert (await sent(app, path, **prompt)).prompt_cache_key == ""


async def test_half_a_surrogate_pair_is_no_key(app: App) -> None:
    body = b'{"prompt": "x", "prompt_cache_key": "\\ud800"}'
    headers = {"content-type": "application/json"}
    response = await app.http.post(COMPLETIONS, content=body, headers=headers)
    assert response.status_code == 400
