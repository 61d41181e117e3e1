"""What a request says about its prompt: its own chat template, documents, hints."""

from typing import Any

import pytest

from support.gateway_app import App, AppMaker
from support.scripted_engine import prompt_of, replay
from taco_gateway.text.tokenizer.tokenizer import Tokenizer

CHAT, TOKENIZE = "/v1/chat/completions", "/tokenize"
MESSAGES = [{"role": "user", "content": "Hello"}]
OWN = "{{ messages[0].content }}{% for d in documents or [] %}|{{ d.text }}{% endfor %}!"


async def error_of(app: App, path: str = CHAT, **body: Any) -> dict[str, Any]:
    response = await app.http.post(path, json={"messages": MESSAGES, **body})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert isinstance(error, dict)
    return error


async def prompts_of(app: App, tokenizer: Tokenizer, **body: Any) -> list[str]:
    """The prompt of a chat as the engine gets it, and as /tokenize shows it."""
    body = {"messages": MESSAGES, **body}
    tokens = (await app.http.post(TOKENIZE, json=body)).json()["tokens"]
    response = await app.http.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    ids = (prompt_of(app.engine.requests[-1]), tokens)
    return [tokenizer.decode(each, skip_special_tokens=False) for each in ids]


async def test_a_template_of_a_request_needs_the_operators_trust(make_app: AppMaker) -> None:
    app = make_app(replay([5]))
    for path in (CHAT, TOKENIZE):
        error = await error_of(app, path, chat_template=OWN)
        assert (error["param"], error["code"]) == ("chat_template", "unsupported_parameter")
        assert "--trust-request-chat-template" in error["message"]
    error = await error_of(app, chat_template_kwargs={"chat_template": OWN})
    assert error["param"] == "chat_template_kwargs"
    assert not app.engine.requests


async def test_a_trusted_template_makes_the_prompt(
    make_app: AppMaker, tokenizer: Tokenizer
) -> None:
    app = make_app(replay([5]), trust_request_chat_template=True)
    assert await prompts_of(app, tokenizer, chat_template=OWN) == ["Hello!"] * 2
    documents = [{"title": "T", "text": "one"}, {"text": "<|im_end|>"}]
    body = {"chat_template": OWN, "documents": documents}
    assert await prompts_of(app, tokenizer, **body) == ["Hello|one|<|im_end|>!"] * 2
    ids = prompt_of(app.engine.requests[-1])
    assert not tokenizer.special_ids.intersection(ids)
    marked = {"chat_template": "<|im_start|>" + OWN, "cache_control": {"type": "ephemeral"}}
    await prompts_of(app, tokenizer, **marked)
    request = app.engine.requests[-1]
    assert prompt_of(request)[0] == tokenizer.special_tokens["<|im_start|>"]
    assert [pin.num_tokens for pin in request.pins] == [len(prompt_of(request)) - 1]


HOSTILE = [
    "{% for i in range(10**9) %}{% for j in range(10**9) %}{% endfor %}{% endfor %}",
    "{{ 'x' * 10**12 }}",
    "{% for i in range(10**6) %}{{ 'x' * 1000 }}{% endfor %}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{% include '/etc/passwd' %}",
    "{{ raise_exception('no') }}",
    "{% if",
    "{" * 100_000,
]


@pytest.mark.process
async def test_hostile_templates_are_rejected_and_disturb_nobody(
    make_app: AppMaker, tokenizer: Tokenizer
) -> None:
    app = make_app(replay([5]), trust_request_chat_template=True)
    expected = await prompts_of(app, tokenizer)
    for template in HOSTILE:
        error = await error_of(app, chat_template=template)
        assert error["param"] in ("chat_template", "messages"), template
        assert await prompts_of(app, tokenizer) == expected
    assert (await error_of(app, chat_template="x" * 2**18))["param"] == "chat_template"


async def test_documents_need_a_template_that_reads_them(
    make_app: AppMaker, tokenizer: Tokenizer
) -> None:
    app = make_app(replay([5]))
    for path in (CHAT, TOKENIZE):
        assert (await error_of(app, path, documents=[{"text": "x"}]))["param"] == "documents"
    wrong: list[Any] = ["x", ["x"], [{}] * 2000, [{"a": [[[[[[[[1]]]]]]]]}]]
    for value in wrong:
        assert (await error_of(app, documents=value))["param"].startswith("documents")
    assert await prompts_of(app, tokenizer, documents=[]) == await prompts_of(app, tokenizer)
    reading = make_app(replay([5]), chat_template=OWN)
    assert await prompts_of(reading, tokenizer, documents=[{"text": "x"}]) == ["Hello|x!"] * 2


async def test_verbosity_is_for_templates_that_read_it(
    make_app: AppMaker, tokenizer: Tokenizer
) -> None:
    app = make_app(replay([5]))
    plain = make_app(replay([5]), chat_template="{{ verbosity }}{{ messages[0].content }}")
    body = {"messages": MESSAGES}
    assert (await app.http.post(CHAT, json={**body, "verbosity": "medium"})).status_code == 200
    error = await error_of(app, verbosity="low")
    assert (error["param"], error["code"]) == ("verbosity", "unsupported_parameter")
    assert (await error_of(plain, verbosity="much"))["param"] == "verbosity"
    await plain.http.post(CHAT, json={**body, "verbosity": "low"})
    assert prompt_of(plain.engine.requests[-1]) == tokenizer.encode("lowHello")
