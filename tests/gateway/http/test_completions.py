from typing import Any

import pytest

from support.gateway_app import MODEL, App, AppMaker
from support.scripted_engine import Script, Step, prompt_of, replay
from taco_gateway.engine.engine_client import EngineError, SequenceUpdate
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import FinishReason, GenerateRequest

PATH = "/v1/completions"


async def complete(app: App, **body: Any) -> dict[str, Any]:
    response = await app.http.post(PATH, json=body)
    assert response.status_code == 200, response.text
    result = response.json()
    assert isinstance(result, dict)
    return result


def spell(tokenizer: Tokenizer, text: str) -> Script:
    return replay(tokenizer.encode(text))


async def test_whole_answer(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    app = make_app(spell(tokenizer, " jumps"))
    answer = await complete(app, prompt="The fox")
    assert answer["id"].startswith("cmpl-")
    assert (answer["object"], answer["model"]) == ("text_completion", MODEL)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"], choice["logprobs"]) == (
        " jumps",
        "length",
        None,
    )
    (request,) = app.engine.requests
    assert prompt_of(request) == tokenizer.encode("The fox")
    assert request.sampling.max_tokens == 16


async def test_stream(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    app = make_app(spell(tokenizer, ' "jumps"\n😀'))
    events = await app.events(PATH, prompt="The fox", stream_options={"include_usage": True})
    *chunks, last = events
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == ' "jumps"\n😀'
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + [
        "length"
    ]
    assert {chunk["object"] for chunk in events} == {"text_completion"}
    assert (last["choices"], last["usage"]["completion_tokens"]) == (
        [],
        len(tokenizer.encode(' "jumps"\n😀')),
    )


async def test_a_client_without_a_library(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    """It names no model, and splits the stream at NUL bytes."""
    app = make_app(spell(tokenizer, " there!"), api_keys=("taco-llm-test",))
    response = await app.http.post(
        PATH,
        json={"prompt": "Hello!", "stream": True, "max_tokens": 128},
        headers={"authorization": "Bearer taco-llm-test"},
    )
    assert response.status_code == 200
    assert response.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
async def test_several_prompts_and_choices(
    make_app: AppMaker, tokenizer: Tokenizer, stream: bool
) -> None:
    def echo_backwards(request: GenerateRequest) -> list[Step]:
        tokens = prompt_of(request)[::-1]
        return [
            SequenceUpdate(index, tokens, finish_reason=FinishReason.LENGTH) for index in (1, 0)
        ]

    prompts = ["fox", "dog", "the"]
    app = make_app(echo_backwards)
    texts = [""] * 6
    body = {"prompt": prompts, "n": 2, "stream_options": {"include_usage": True}}
    if stream:
        *events, last = await app.events(PATH, **body)
        usage = last["usage"]
        choices = [event["choices"][0] for event in events]
    else:
        answer = await complete(app, prompt=prompts, n=2)
        choices, usage = answer["choices"], answer["usage"]
        assert [choice["index"] for choice in choices] == list(range(6))
    for choice in choices:
        texts[choice["index"]] += choice["text"]
    encoded = [tokenizer.encode(prompt) for prompt in prompts]
    assert texts == [tokenizer.decode(ids[::-1]) for ids in encoded for _ in range(2)]
    total = sum(len(ids) for ids in encoded)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (total, 2 * total)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("fox", [[0]]),
        (["fox", "fox"], [[0], [0]]),
        ([7, 8, 9], [[7, 8, 9]]),
        ([[7], [8, 9]], [[7], [8, 9]]),
    ],
)
async def test_forms_of_prompts(
    make_app: AppMaker, tokenizer: Tokenizer, prompt: object, expected: list[list[int]]
) -> None:
    app = make_app(replay([50]))
    await complete(app, prompt=prompt)
    fox = tokenizer.encode("fox")
    assert [prompt_of(r) for r in app.engine.requests] == [
        fox if ids == [0] else ids for ids in expected
    ]


async def test_special_tokens_in_prompts_count(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    app = make_app(replay([50]))
    await complete(app, prompt="<|im_start|>x")
    assert prompt_of(app.engine.requests[0])[0] == tokenizer.encode("<|im_start|>")[0]


def with_logprobs(request: GenerateRequest) -> list[Step]:
    """Generates ids 60 and 61; every row has the token itself and one more likely one."""
    sampling = request.sampling
    steps: list[Step] = []
    if sampling.prompt_logprobs is not None:
        rows = LogprobColumns()
        for token_id in prompt_of(request)[1:]:
            rows.append_row([token_id, 70], [-2.0, float("-inf")], [2, 1])
        steps.append(SequenceUpdate(0, [], prompt_logprobs=rows))
    assert sampling.max_tokens is not None
    for index in reversed(range(sampling.num_sequences)):
        columns = None
        tokens = [60, 61][: sampling.max_tokens]
        if sampling.logprobs is not None:
            columns = LogprobColumns()
            for token_id in tokens:
                columns.append_row([token_id, 70], [-1.0, -0.5], [2, 1])
        steps.append(
            SequenceUpdate(index, tokens, finish_reason=FinishReason.LENGTH, logprobs=columns)
        )
    return steps


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["The fox", [40, 41, 42]])
async def test_echo_with_logprobs(
    make_app: AppMaker, tokenizer: Tokenizer, stream: bool, prompt: str | list[int]
) -> None:
    app = make_app(with_logprobs)
    body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 2, "n": 2}
    columns: list[dict[str, list[Any]]] = [{}, {}]
    texts = ["", ""]
    choices = (
        [event["choices"][0] for event in await app.events(PATH, **body)]
        if stream
        else (await complete(app, **body))["choices"]
    )
    for choice in choices:
        texts[choice["index"]] += choice["text"]
        for name, values in (choice["logprobs"] or {}).items():
            columns[choice["index"]].setdefault(name, []).extend(values)
    ids = prompt_of(app.engine.requests[0])
    names = [tokenizer.decode([i]) for i in [*ids, 60, 61]]
    for text, column in zip(texts, columns, strict=True):
        assert text == "".join(names)
        assert column["tokens"] == names
        assert column["token_logprobs"] == [None] + [-2.0] * (len(ids) - 1) + [-1.0, -1.0]
        assert column["top_logprobs"][0] is None
        assert column["top_logprobs"][1][tokenizer.decode([70])] == -9999.0
        assert column["text_offset"] == [len("".join(names[:i])) for i in range(len(names))]


async def test_every_token_of_an_echoed_prompt_has_the_same_form(make_app: AppMaker) -> None:
    app = make_app(with_logprobs)
    half = "é".encode()[0]
    ids = [next(i for i in range(400) if app.gateway.engine.spell(i) == f"bytes:\\x{half:x}"), 40]
    body = {"prompt": ids, "echo": True, "logprobs": 0, "max_tokens": 0}
    columns = (await complete(app, **body))["choices"][0]["logprobs"]
    assert columns["tokens"] == ["bytes:\\xc3", app.gateway.engine.spell(40)]
    body["return_tokens_as_token_ids"] = True
    columns = (await complete(app, **body))["choices"][0]["logprobs"]
    assert columns["tokens"] == [f"token_id:{i}" for i in ids]


@pytest.mark.parametrize("stream", [False, True])
async def test_loglikelihood_of_a_prompt(
    make_app: AppMaker, tokenizer: Tokenizer, stream: bool
) -> None:
    """The request of lm-eval: no generated token, only the prompt's log probabilities."""
    app = make_app(with_logprobs)
    ids = tokenizer.encode("The lazy dog")
    body = {"prompt": [ids], "echo": True, "logprobs": 1, "max_tokens": 0}
    if stream:
        events = await app.events(PATH, **body, stream_options={"include_usage": True})
        *chunks, last = events
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        logprobs, usage = chunks[0]["choices"][0]["logprobs"], last["usage"]
        assert chunks[-1]["choices"][0]["logprobs"]["tokens"] == []
        finish_reason = chunks[-1]["choices"][0]["finish_reason"]
    else:
        answer = await complete(app, **body)
        (choice,) = answer["choices"]
        text, logprobs, usage = choice["text"], choice["logprobs"], answer["usage"]
        finish_reason = choice["finish_reason"]
    assert text == "The lazy dog"
    assert logprobs["token_logprobs"] == [None] + [-2.0] * (len(ids) - 1)
    assert len(logprobs["tokens"]) == len(logprobs["top_logprobs"]) == len(ids)
    assert usage["completion_tokens"] == 0
    assert finish_reason == "length"


async def test_echo_without_logprobs(make_app: AppMaker, tokenizer: Tokenizer) -> None:
    app = make_app(spell(tokenizer, " jumps"))
    prompt = "The <|im_start|>fox"
    whole = await complete(app, prompt=prompt, echo=True)
    assert whole["choices"][0]["text"] == prompt + " jumps"
    events = await app.events(PATH, prompt=prompt, echo=True)
    assert "".join(e["choices"][0]["text"] for e in events) == prompt + " jumps"
    assert app.engine.requests[0].sampling.prompt_logprobs is None
    cut = await complete(app, prompt=prompt, echo=True, truncate_prompt_tokens=1)
    assert cut["choices"][0]["text"] == tokenizer.decode(tokenizer.encode(prompt)[-1:]) + " jumps"


async def test_best_of_returns_the_likeliest(make_app: AppMaker) -> None:
    def script(request: GenerateRequest) -> list[Step]:
        steps: list[Step] = []
        for index, logprob in enumerate([-3.0, -1.0, -2.0]):
            columns = LogprobColumns()
            columns.append_row([60 + index], [logprob], [1])
            steps.append(
                SequenceUpdate(
                    index, [60 + index], finish_reason=FinishReason.LENGTH, logprobs=columns
                )
            )
        return steps

    app = make_app(script)
    answer = await complete(app, prompt=[40], n=2, best_of=3, logprobs=0)
    assert [c["logprobs"]["token_logprobs"] for c in answer["choices"]] == [[-1.0], [-2.0]]
    assert [c["index"] for c in answer["choices"]] == [0, 1]
    assert app.engine.requests[0].sampling.num_sequences == 3


async def test_default_length_is_clamped_and_a_given_one_refused(make_app: AppMaker) -> None:
    app = make_app(replay([50]))
    await complete(app, prompt=[40] * 508)
    assert app.engine.requests[0].sampling.max_tokens == 4
    response = await app.http.post(PATH, json={"prompt": [40] * 508, "max_tokens": 16})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


async def test_prompt_logprobs_extension(make_app: AppMaker) -> None:
    app = make_app(with_logprobs)
    answer = await complete(app, prompt=[[40, 41], [42, 43, 44]], prompt_logprobs=1)
    first, second = (choice["prompt_logprobs"] for choice in answer["choices"])
    assert (len(first), len(second)) == (2, 3)
    assert first[0] is None
    assert first[1]["41"]["logprob"] == -2.0


async def test_without_a_tokenizer_token_ids_still_work(make_app: AppMaker) -> None:
    app = make_app(replay([50]), with_tokenizer=False)
    answer = await complete(app, prompt=[40, 41])
    assert answer["choices"][0]["text"] == ""
    assert answer["usage"]["completion_tokens"] == 1
    for path, body in (
        (PATH, {"prompt": "text"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/tokenize", {"prompt": "x"}),
    ):
        response = await app.http.post(path, json=body)
        assert response.status_code == 400, path


async def test_one_failing_prompt_cancels_the_others(make_app: AppMaker) -> None:
    def script(request: GenerateRequest) -> list[Step]:
        if prompt_of(request) == [41]:
            return [EngineError(429, "Full.")]
        return [SequenceUpdate(0, [50]) for _ in range(100)]

    app = make_app(script)
    response = await app.http.post(PATH, json={"prompt": [[40], [41], [42]]})
    assert response.status_code == 429
    assert all(stream.closed.is_set() for stream in app.engine.streams)
