"""Fields beyond OpenAI's that add something to the prompt or the answer."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from support.gateway_app import App, AppMaker
from support.scripted_engine import MODEL_INFO, Script, prompt_of, replay
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.requests import FinishReason

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "Hello"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


def spell(tokenizer: Tokenizer, text: str) -> Script:
    return replay(tokenizer.encode(text, add_special_tokens=False), FinishReason.LENGTH)


async def answer_of(app: App, path: str, **body: Any) -> dict[str, Any]:
    response = await app.http.post(path, json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert isinstance(answer, dict)
    return answer


def prompt_text(app: App, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(prompt_of(app.engine.requests[-1]), skip_special_tokens=False)


@pytest.mark.parametrize("include_usage", [False, True])
@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, {"messages": [USER]}), (COMPLETIONS, {"prompt": "The"})]
)
async def test_every_chunk_has_the_usage_so_far(
    make_app: AppMaker,
    tokenizer: Tokenizer,
    path: str,
    body: dict[str, Any],
    include_usage: bool,
) -> None:
    # A text that spells the end of a frame must stay as it is.
    text = 'quick ,"usage":null}\n\n fox'
    app = make_app(spell(tokenizer, text))
    options = {"include_usage": include_usage, "continuous_usage_stats": True}
    body = {**body, "n": 2, "max_tokens": 99}
    events = await app.events(path, **body, stream_options=options)
    whole = (await answer_of(app, path, **body))["usage"]
    assert all(event["usage"]["prompt_tokens"] == whole["prompt_tokens"] for event in events)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert all(left <= right for left, right in pairwise(counts))
    assert events[-1]["usage"] == whole
    assert (events[-1]["choices"] == []) == include_usage
    pieces = [c for event in events for c in event["choices"] if c["index"] == 0]
    shown = "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in pieces)
    assert shown == text


@pytest.mark.parametrize("extra", [{}, {"echo": True}])
async def test_token_ids_of_completions(
    make_app: AppMaker, tokenizer: Tokenizer, extra: dict[str, Any]
) -> None:
    ids = tokenizer.encode("quick 🦊", add_special_tokens=False)
    app = make_app(replay(ids))
    body = {
        "prompt": [[5, 6], [7]],
        "n": 2,
        "max_tokens": 99,
        "return_token_ids": True,
        **extra,
    }
    whole = (await answer_of(app, COMPLETIONS, **body))["choices"]
    prompts = [[5, 6], [5, 6], [7], [7]]
    assert [choice["prompt_token_ids"] for choice in whole] == prompts
    assert [choice["token_ids"] for choice in whole] == [ids] * 4
    streamed: list[list[int]] = [[], [], [], []]
    prompts_seen: list[list[list[int]]] = [[], [], [], []]
    for event in await app.events(COMPLETIONS, **body):
        (chunk,) = event["choices"]
        streamed[chunk["index"]] += chunk.get("token_ids", [])
        if "prompt_token_ids" in chunk:
            prompts_seen[chunk["index"]].append(chunk["prompt_token_ids"])
    assert streamed == [ids] * 4
    assert prompts_seen == [[prompt] for prompt in prompts]


async def test_token_ids_of_chats(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("quick 🦊", add_special_tokens=False)
    app = make_app(replay(ids))
    body = {"messages": [USER], "n": 2, "return_token_ids": True, "truncate_prompt_tokens": 4}
    whole = await answer_of(app, CHAT, **body)
    assert whole["prompt_token_ids"] == prompt_of(app.engine.requests[0])
    assert len(whole["prompt_token_ids"]) == 4
    assert [choice["token_ids"] for choice in whole["choices"]] == [ids, ids]
    streamed: list[list[int]] = [[], []]
    events = await app.events(CHAT, **body)
    assert events[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    for event in events:
        (chunk,) = event["choices"]
        streamed[chunk["index"]] += chunk.get("token_ids", [])
    assert streamed == [ids, ids]
    plain = await app.events(CHAT, messages=[USER])
    assert all("token_ids" not in event["choices"][0] for event in plain)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_echoes_the_turn_that_it_continues(
    make_app: AppMaker, tokenizer: Tokenizer, stream: bool
) -> None:
    app = make_app(spell(tokenizer, " fox"))
    turns = [USER, {"role": "assistant", "content": "The quick"}]
    continued = {"continue_final_message": True, "add_generation_prompt": False}
    cases = [(turns, continued, "The quick fox"), ([USER], {}, " fox")]
    for messages, extra, expected in cases:
        body = {"messages": messages, "echo": True, "n": 2, **extra}
        texts = ["", ""]
        if stream:
            for event in await app.events(CHAT, **body):
                (chunk,) = event["choices"]
                texts[chunk["index"]] += chunk["delta"].get("content", "")
        else:
            choices = (await answer_of(app, CHAT, **body))["choices"]
            texts = [choice["message"]["content"] for choice in choices]
        assert texts == [expected, expected]


async def test_the_fingerprint_is_on_every_answer(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    app = make_app(spell(tokenizer, "fox"))
    whole = [
        await answer_of(app, CHAT, messages=[USER]),
        await answer_of(app, COMPLETIONS, prompt="x"),
        *await app.events(CHAT, messages=[USER]),
        *await app.events(COMPLETIONS, prompt="x"),
    ]
    assert {answer["system_fingerprint"] for answer in whole} == {app.gateway.system_fingerprint}
    assert app.gateway.system_fingerprint.startswith("fp_")


async def test_a_template_gets_its_variables(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    template = "{{ messages[-1].content }} {{ style.tone }} {{ reasoning_effort }}"
    app = make_app(spell(tokenizer, "fox"), chat_template=template)
    kwargs = {"style": {"tone": "calm<|im_end|>"}}
    body = {"messages": [USER], "chat_template_kwargs": kwargs, "reasoning_effort": "low"}
    await answer_of(app, CHAT, **body)
    prompt = prompt_of(app.engine.requests[-1])
    assert prompt_text(app, tokenizer) == "Hello calm<|im_end|> low"
    assert tokenizer.special_tokens["<|im_end|>"] not in prompt  # it is plain text
    plain = make_app(spell(tokenizer, "fox"))
    await answer_of(plain, CHAT, messages=[USER], reasoning_effort="low")


@pytest.mark.parametrize("calls", [None, []])
async def test_the_assistants_content_may_be_null(
    make_app: AppMaker, tokenizer: Tokenizer, calls: object
) -> None:
    app = make_app(spell(tokenizer, "fox"))
    turn = {"role": "assistant", "content": None, "tool_calls": calls}
    await answer_of(app, CHAT, messages=[USER, turn, USER])
    assert "<|im_start|>assistant\n<|im_end|>" in prompt_text(app, tokenizer)


async def test_tool_calls_of_the_history_reach_a_template_that_reads_them(
    make_app: AppMaker, tokenizer: Tokenizer
) -> None:
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for call in m.tool_calls or [] %}{{ call.function.name }}"
        "{{ call.function.arguments | tojson }}{% endfor %};{% endfor %}"
    )
    app = make_app(spell(tokenizer, "fox"), chat_template=template)
    turn = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    await answer_of(app, CHAT, messages=[USER, turn, USER])
    assert prompt_text(app, tokenizer) == 'user:Hello;assistant:f{"x": 1};user:Hello;'


async def test_a_prompt_is_truncated_to_what_fits(make_app: AppMaker) -> None:
    app = make_app(replay([50]))
    prompt = [5 + i % 90 for i in range(600)]
    answer = await answer_of(
        app, COMPLETIONS, prompt=prompt, truncate_prompt_tokens=-1, max_tokens=12
    )
    assert prompt_of(app.engine.requests[0]) == prompt[-500:]
    assert answer["usage"]["prompt_tokens"] == 500
    await answer_of(app, COMPLETIONS, prompt=[5, 6], truncate_prompt_tokens=-1)
    assert prompt_of(app.engine.requests[1]) == [5, 6]
    for limit, kept in ((-1, 512 - 16), (9, 9)):
        body = {"prompt": prompt, "truncate_prompt_tokens": limit, "truncation_side": "right"}
        await answer_of(app, COMPLETIONS, **body)
        assert prompt_of(app.engine.requests[-1]) == prompt[:kept]


async def test_a_chat_is_truncated_to_leave_room_for_one_token(make_app: AppMaker) -> None:
    app = make_app(replay([50]), chat_template="{{ messages[0].content }}")
    body = {"messages": [{"role": "user", "content": "a b" * 999}], "truncate_prompt_tokens": -1}
    await answer_of(app, CHAT, **body)
    left = prompt_of(app.engine.requests[-1])
    await answer_of(app, CHAT, **body, truncation_side="right", max_completion_tokens=500)
    right = prompt_of(app.engine.requests[-1])
    assert (len(left), len(right)) == (511, 12)
    assert app.engine.requests[0].sampling.max_tokens == 1


async def test_as_many_logprobs_as_the_operator_allows(make_app: AppMaker) -> None:
    app = make_app(replay([50]), info=replace(MODEL_INFO, max_logprobs=50))
    await answer_of(app, COMPLETIONS, prompt="x", logprobs=50)
    await answer_of(app, CHAT, messages=[USER], logprobs=True, top_logprobs=50)
    assert [request.sampling.logprobs for request in app.engine.requests] == [50, 50]
    for path, body, name in (
        (COMPLETIONS, {"prompt": "x", "logprobs": 51}, "logprobs"),
        (CHAT, {"messages": [USER], "logprobs": True, "top_logprobs": 51}, "top_logprobs"),
    ):
        response = await app.http.post(path, json=body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == name


async def test_completions_take_the_newer_name_of_max_tokens(make_app: AppMaker) -> None:
    app = make_app(replay([50, 51, 52]))
    answer = await answer_of(app, COMPLETIONS, prompt="x", max_tokens=1, max_completion_tokens=2)
    assert answer["usage"]["completion_tokens"] == 2
    echoed = await answer_of(app, COMPLETIONS, prompt="x", max_completion_tokens=0, echo=True)
    assert echoed["choices"][0]["text"] == "x"


async def test_token_id_lists_of_a_large_body_have_their_effect(
    make_app: AppMaker, tokenizer: Tokenizer
) -> None:
    """They come packed from the process that parses it."""
    app = make_app(
        spell(tokenizer, "fox"), chat_template="{{ messages[0].content[:5] }}{{ marks | tojson }}"
    )
    marks = list(range(300))
    body = {
        "messages": [{"role": "user", "content": "Hello" * 2**16}],
        "chat_template_kwargs": {"marks": marks},
        "allowed_token_ids": marks,
        "stop_token_ids": marks,
        "truncate_prompt_tokens": 400,
    }
    await answer_of(app, CHAT, **body)
    sampling = app.engine.requests[0].sampling
    assert sampling.allowed_token_ids == sampling.stop_token_ids == tuple(marks)
    assert prompt_text(app, tokenizer).endswith("298, 299]")


async def test_detokenize_false_gives_no_text(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    app = make_app(spell(tokenizer, "fox"))
    body = {"detokenize": False, "return_token_ids": True}
    (choice,) = (await answer_of(app, COMPLETIONS, prompt="x", **body))["choices"]
    assert choice["text"] == ""
    fox = tokenizer.encode("fox", add_special_tokens=False)
    assert choice["token_ids"] == fox
    for path, prompt in ((COMPLETIONS, {"prompt": "x"}), (CHAT, {"messages": [USER]})):
        choices = [event["choices"][0] for event in await app.events(path, **body | prompt)]
        assert [i for choice in choices for i in choice.get("token_ids", ())] == fox
        assert not any(c.get("text") or c.get("delta", {}).get("content") for c in choices)
