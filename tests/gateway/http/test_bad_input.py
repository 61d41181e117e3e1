"""Bad input gets an error in OpenAI's format, and the next request is served."""

import re
from typing import Any

import pytest

from support.gateway_app import App, AppMaker
from support.scripted_engine import replay

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = {"role": "user", "content": "x"}
KIB_10 = "x" * 10 * 1024
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MARK = {"cache_control": {"type": "ephemeral"}}

# Parameters that both surfaces have: (name that the error must give, body).
SHARED: list[tuple[str, dict[str, Any]]] = [
    ("n", {"n": 0}),
    ("n", {"n": -1}),
    ("n", {"n": 10**9}),
    ("n", {"n": 1.5}),
    ("n", {"n": "2"}),
    ("n", {"n": True}),
    ("best_of", {"n": 3, "best_of": 2}),
    ("best_of", {"best_of": 2, "stream": True}),
    ("temperature", {"temperature": -1}),
    ("temperature", {"temperature": 1e300}),
    ("allowed_token_ids", {"allowed_token_ids": []}),
    ("allowed_token_ids", {"allowed_token_ids": [1000]}),
    ("allowed_token_ids", {"allowed_token_ids": [-1]}),
    ("allowed_token_ids", {"allowed_token_ids": ["1"]}),
    ("bad_words", {"bad_words": [""]}),
    ("bad_words", {"bad_words": [5]}),
    ("bad_words", {"bad_words": KIB_10}),
    ("temperature", {"temperature": "x"}),
    ("temperature", {"temperature": True}),
    ("temperature", {"temperature": []}),
    ("top_p", {"top_p": 0}),
    ("top_p", {"top_p": 1.5}),
    ("top_p", {"top_p": 1e-300}),
    ("repetition_penalty", {"repetition_penalty": 1e-300}),
    ("top_k", {"top_k": -2}),
    ("min_p", {"min_p": 1.5}),
    ("max_tokens", {"max_tokens": -1}),
    ("max_tokens", {"max_tokens": 2**31}),
    ("max_tokens", {"max_tokens": 10**30}),
    ("max_tokens", {"max_tokens": 512}),
    ("min_tokens", {"min_tokens": 9, "max_tokens": 8}),
    ("presence_penalty", {"presence_penalty": 2.5}),
    ("frequency_penalty", {"frequency_penalty": -2.5}),
    ("repetition_penalty", {"repetition_penalty": 0}),
    ("no_repeat_ngram_size", {"no_repeat_ngram_size": -1}),
    ("stop", {"stop": ["a"] * 65}),
    ("stop", {"stop": ""}),
    ("stop", {"stop": ["a", ""]}),
    ("stop", {"stop": KIB_10}),
    ("stop", {"stop": 3}),
    ("stop", {"stop": [3]}),
    ("stop_token_ids", {"stop_token_ids": [1000]}),
    ("stop_token_ids", {"stop_token_ids": [-1]}),
    ("stop_token_ids", {"stop_token_ids": ["1"]}),
    ("logit_bias", {"logit_bias": {"1000000000": 1}}),
    ("logit_bias", {"logit_bias": {"5": 101}}),
    ("logit_bias", {"logit_bias": {"x": 1}}),
    ("logit_bias", {"logit_bias": {"5": "1"}}),
    ("logit_bias", {"logit_bias": {"05": 1}}),
    ("logit_bias", {"logit_bias": {" 5": 1}}),
    ("logit_bias", {"logit_bias": {"1_0": 1}}),
    ("logit_bias", {"logit_bias": {"\u0665": 1}}),
    ("logit_bias", {"logit_bias": {"-1": 1}}),
    ("logit_bias", {"logit_bias": [5]}),
    ("seed", {"seed": 2**70}),
    ("seed", {"seed": 10**4000}),
    ("seed", {"seed": 0.5}),
    ("cache_salt", {"cache_salt": KIB_10}),
    ("prompt_cache_key", {"prompt_cache_key": 7}),
    ("prompt_cache_key", {"prompt_cache_key": KIB_10}),
    ("prompt_cache_retention", {"prompt_cache_retention": "1h"}),
    ("cache_control", {"cache_control": "ephemeral"}),
    ("cache_control", {"cache_control": {}}),
    ("cache_control", {"cache_control": {"type": "persistent"}}),
    ("cache_control", {"cache_control": {"type": "ephemeral", "ttl": "2h"}}),
    ("cache_control", {"cache_control": {"type": "ephemeral", "ttl": 300}}),
    ("priority", {"priority": 2**40}),
    ("prompt_logprobs", {"prompt_logprobs": 21}),
    ("prompt_logprobs", {"prompt_logprobs": 1, "stream": True}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": 0}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": -2}),
    ("max_completion_tokens", {"max_completion_tokens": -1}),
    ("max_completion_tokens", {"max_completion_tokens": 512}),
    ("detokenize", {"detokenize": 0}),
    ("stop", {"detokenize": False, "stop": "x"}),
    ("return_token_ids", {"return_token_ids": "yes"}),
    ("stream", {"stream": "yes"}),
    ("stream_options", {"stream_options": {"include_usage": True}}),
    ("stream_options", {"stream": True, "stream_options": "usage"}),
    ("stream_options", {"stream": True, "stream_options": {"include_usage": 1}}),
    ("stream_options", {"stream": True, "stream_options": {"continuous_usage_stats": 1}}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
    ("tool_choice", {"tool_choice": "required"}),
    ("functions", {"functions": [{"name": "f"}]}),
    ("function_call", {"function_call": {"name": "f"}}),
    ("response_format", {"response_format": {"type": "json_schema", "json_schema": {}}}),
    ("response_format", {"response_format": "yaml"}),
    ("guided_json", {"guided_json": {"type": "object", "uniqueItems": True}}),
    ("guided_regex", {"guided_regex": "("}),
    ("guided_choice", {"guided_choice": "a"}),
    ("guided_grammar", {"guided_grammar": "root ::= other"}),
    ("structured_outputs", {"structured_outputs": {"regex": "x", "choice": ["x"]}}),
    ("guided_whitespace_pattern", {"guided_whitespace_pattern": 5}),
    (
        "guided_whitespace_pattern",
        {"guided_json": {"type": "object"}, "guided_whitespace_pattern": 5},
    ),
    ("stream", {"use_beam_search": True, "stream": True}),
    ("length_penalty", {"length_penalty": 2.0}),
    ("early_stopping", {"early_stopping": True}),
    ("top_p", {"use_beam_search": True, "top_p": 0.5}),
    ("best_of", {"use_beam_search": True, "best_of": 65}),
    ("chat_template", {"chat_template": "{{ 7 * 7 }}"}),
    ("suffix", {"suffix": "end"}),
    ("model", {"model": 7}),
]
CHAT_ONLY: list[tuple[str, dict[str, Any]]] = [
    ("messages", {"messages": []}),
    ("messages", {"messages": None}),
    ("messages", {"messages": "hello"}),
    ("messages", {"messages": [{"role": "user", "content": [{"type": [], "text": "a"}]}]}),
    ("messages", {"messages": [{"role": "user", "content": [{"type": {}, "text": "a"}]}]}),
    ("messages", {"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": 1}]}]}),
    ("messages", {"messages": [USER] * 5000}),
    ("messages", {"messages": [{"role": "root", "content": "x"}]}),
    ("messages", {"messages": [{"content": "x"}]}),
    ("messages", {"messages": [{"role": "user"}]}),
    ("messages", {"messages": [{"role": "user", "content": None}]}),
    ("messages", {"messages": [{"role": "user", "content": []}]}),
    ("messages", {"messages": [{"role": "user", "content": 3}]}),
    ("messages", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
    (
        "messages",
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "http://169.254.1.1/"}}],
                }
            ]
        },
    ),
    ("messages", {"messages": [USER, {"role": "tool", "tool_call_id": "1"}]}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}] * 2}),
    ("tools", {"tools": [{"type": "function", "function": {}}]}),
    ("tools", {"tools": [{"type": "search"}]}),
    ("functions", {"functions": [{"parameters": {}}]}),
    ("tool_choice", {"tool_choice": "always"}),
    ("function_call", {"functions": [{"name": "f"}], "function_call": {"name": "g"}}),
    ("include_reasoning", {"include_reasoning": "no"}),
    (
        "messages",
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]},
    ),
    ("messages", {"messages": ["x"]}),
    ("messages", {"messages": [USER | MARK] * 5}),
    ("messages", {"messages": [USER | MARK] * 4, **MARK}),
    ("messages", {"messages": [{"role": "user", "content": "fox " * 2000}]}),
    ("max_completion_tokens", {"max_completion_tokens": 0}),
    ("max_completion_tokens", {"max_completion_tokens": 2**31, "max_tokens": 3}),
    ("max_tokens", {"max_tokens": 0}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": -1}),
    ("top_logprobs", {"top_logprobs": 2}),
    ("logprobs", {"logprobs": 5}),
    ("continue_final_message", {"continue_final_message": True}),
    (
        "continue_final_message",
        {
            "messages": [{"role": "assistant", "content": "x"}],
            "continue_final_message": True,
            "add_generation_prompt": True,
        },
    ),
    ("messages", {"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}),
    ("messages", {"messages": [{"role": "assistant", "content": None, "tool_calls": [CALL]}]}),
    ("messages", {"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}),
    ("echo", {"echo": 1}),
    ("reasoning_effort", {"reasoning_effort": 3}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"no_such_variable": 1}}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"messages": []}}),
    ("chat_template_kwargs", {"chat_template_kwargs": ["x"]}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"a": [[[[[[[[[]]]]]]]]]}}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"a": [0] * 2000}}),
    ("chat_template_kwargs", {"chat_template_kwargs": {"a": KIB_10 * 7}}),
]
COMPLETIONS_ONLY: list[tuple[str, dict[str, Any]]] = [
    ("prompt", {"prompt": None}),
    ("prompt", {"prompt": ""}),
    ("prompt", {"prompt": []}),
    ("prompt", {"prompt": [[]]}),
    ("prompt", {"prompt": ["x", ""]}),
    ("prompt", {"prompt": ["x", 1]}),
    ("prompt", {"prompt": [1, "x"]}),
    ("prompt", {"prompt": [True]}),
    ("prompt", {"prompt": [1.5]}),
    ("prompt", {"prompt": {"text": "x"}}),
    ("prompt", {"prompt": ["x"] * 2000}),
    ("prompt", {"prompt": [-1]}),
    ("prompt", {"prompt": [1000]}),
    ("prompt", {"prompt": [2**70]}),
    ("prompt", {"prompt": [5] * 512}),
    ("n", {"prompt": ["x"] * 100, "n": 100}),
    ("max_tokens", {"max_tokens": 0}),
    ("logprobs", {"logprobs": 21}),
    ("logprobs", {"logprobs": -1}),
    ("logprobs", {"logprobs": True}),
    ("echo", {"echo": "yes"}),
]
CASES = [
    *((CHAT, name, {"messages": [USER], **body}) for name, body in SHARED + CHAT_ONLY),
    *((COMPLETIONS, name, {"prompt": "x", **body}) for name, body in SHARED + COMPLETIONS_ONLY),
]


def check_envelope(payload: dict[str, Any]) -> dict[str, Any]:
    assert set(payload) == {"error"}
    error = payload["error"]
    assert isinstance(error, dict)
    assert set(error) == {"message", "type", "param", "code"}
    assert 0 < len(error["message"]) <= 1001
    for secret in ("Traceback", ".py", "/work", "/models", "0x", "site-packages", "pydantic"):
        assert secret not in error["message"]
    return error


@pytest.fixture
def app(make_app: AppMaker) -> App:
    return make_app(replay([50]))


async def test_a_bad_parameter_is_named(app: App) -> None:
    for path, name, body in CASES:
        response = await app.http.post(path, json=body)
        assert response.status_code == 400, (path, name, str(body)[:200], response.text)
        error = check_envelope(response.json())
        assert error["type"] == "invalid_request_error"
        named = str(error["param"])
        assert re.split(r"[.\[]", named)[0] == name, (path, str(body)[:200], error)
    assert not app.engine.streams
    for path, good in ((CHAT, {"messages": [USER]}), (COMPLETIONS, {"prompt": "x"})):
        assert (await app.http.post(path, json=good)).status_code == 200


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "root", "content": "x"}, "messages[1].role"),
        ({"role": "user", "content": 3}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[1].content[0].type"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "assistant", "function_call": "auto"}, "messages[1]"),
        ({"role": "assistant", "function_call": {"name": "f", "arguments": {}}}, "messages[1]"),
        (USER | {"cache_control": {"type": "x"}}, "messages[1].cache_control.type"),
        (
            {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]},
            "messages[1].content[0].cache_control.type",
        ),
    ],
)
async def test_a_bad_message_is_pointed_at(
    app: App, message: dict[str, object], param: str
) -> None:
    response = await app.http.post(CHAT, json={"messages": [USER, message]})
    error = response.json()["error"]
    assert error["param"] == param
    assert error["message"].startswith(param)


@pytest.mark.parametrize("num_levels", [65, 400, 940, 960, 975, 990, 50_000])
@pytest.mark.parametrize(("opens", "closes"), [('{"a":', "}"), ("[", "]"), ('{"a":[', "]}")])
async def test_arguments_that_are_nested_too_deeply(
    make_app: AppMaker, opens: str, closes: str, num_levels: int
) -> None:
    app = make_app(
        replay([50]), chat_template="{{ messages[0].content }}{{ messages[0].tool_calls | length }}"
    )
    function = {"name": "f", "arguments": opens * num_levels + "1" + closes * num_levels}
    message = {"role": "assistant", "content": "x", "tool_calls": [{"function": function}]}
    response = await app.http.post(CHAT, json={"messages": [message]})
    assert response.status_code == 400
    error = check_envelope(response.json())
    assert error["param"] == "messages"
    assert "more than 64 levels" in error["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("model", ["gpt-4", "../../x", "", "/models/scripted"])
async def test_unknown_models(app: App, path: str, model: str) -> None:
    body = {"messages": [USER], "prompt": "x", "model": model}
    response = await app.http.post(path, json=body)
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("model", "model_not_found")


async def test_a_prompt_that_is_too_long_is_named(app: App) -> None:
    response = await app.http.post(COMPLETIONS, json={"prompt": [5] * 600})
    error = check_envelope(response.json())
    assert error["code"] == "context_length_exceeded"
    assert "512" in error["message"]
    assert "600" in error["message"]


async def test_the_first_prompt_that_is_too_long_ends_the_work(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = app.gateway.require_tokenizer()
    encode = tokenizer.encode
    encoded: list[str] = []

    def watched(text: str, *, add_special_tokens: bool = True) -> list[int]:
        encoded.append(text)
        return encode(text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(tokenizer, "encode", watched)
    prompts = ["The fox", "~ " * 300, *["dog"] * 50]
    response = await app.http.post(COMPLETIONS, json={"prompt": prompts})
    assert check_envelope(response.json())["code"] == "context_length_exceeded"
    assert encoded == prompts[:2]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"n": NaN}', b'{"a": 1, "a": 1}', b"\xff"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
async def test_bodies_that_are_no_json(app: App, path: str, body: bytes) -> None:
    response = await app.http.post(path, content=body)
    assert response.status_code == 400
    assert check_envelope(response.json())["code"] == "invalid_json"


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
async def test_other_content_types(app: App, content_type: str) -> None:
    headers = {"content-type": content_type}
    response = await app.http.post(COMPLETIONS, content=b'{"prompt": "x"}', headers=headers)
    assert response.status_code == 415
    check_envelope(response.json())


async def test_a_charset_is_no_other_content_type(app: App) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    response = await app.http.post(COMPLETIONS, content=b'{"prompt": "x"}', headers=headers)
    assert response.status_code == 200


async def test_large_bodies(make_app: AppMaker) -> None:
    app = make_app(replay([50]), max_body_bytes=1000)
    body = b'{"prompt": "' + b"x" * 1000 + b'"}'

    async def pieces() -> Any:
        for start in range(0, len(body), 100):
            yield body[start : start + 100]

    headers = {"content-type": "application/json"}
    for content in (body, pieces()):
        response = await app.http.post(COMPLETIONS, content=content, headers=headers)
        assert response.status_code == 413
        check_envelope(response.json())


async def test_unknown_routes(app: App) -> None:
    for method, path, status in (
        ("GET", "/", 404),
        ("GET", "/redoc", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", CHAT, 405),
        ("GET", COMPLETIONS, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
    ):
        response = await app.http.request(method, path)
        assert response.status_code == status, (method, path)
        check_envelope(response.json())
        assert response.headers["x-request-id"]


async def test_an_unexpected_error_reveals_nothing(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(_: object) -> None:
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(app.engine, "script", explode)
    response = await app.http.post(COMPLETIONS, json={"prompt": "x"})
    assert response.status_code == 500
    assert check_envelope(response.json())["type"] == "server_error"
    assert "secret" not in response.text
    assert "/secret/path" in caplog.text
    assert response.headers["x-request-id"]


@pytest.mark.slow
@pytest.mark.parametrize("truncate", [False, True])
async def test_a_huge_prompt_is_refused_before_it_is_tokenized(
    app: App, monkeypatch: pytest.MonkeyPatch, truncate: bool
) -> None:
    def encode(*_: object, **__: object) -> None:
        raise AssertionError("tokenized")

    tokenizer = type(app.gateway.require_tokenizer())
    monkeypatch.setattr(tokenizer, "encode", encode)
    monkeypatch.setattr(tokenizer, "encode_parts", encode)
    num_chars = 9_000_000 if truncate else 20_000
    extra = {"truncate_prompt_tokens": 5} if truncate else {}
    text = "<|im_start|>" + "x" * num_chars
    for path, body, param in (
        (COMPLETIONS, {"prompt": text}, "prompt"),
        (COMPLETIONS, {"prompt": [text, "x"]}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": text}]}, "messages"),
    ):
        response = await app.http.post(path, json={**body, **extra})
        error = check_envelope(response.json())
        assert (response.status_code, error["param"]) == (400, param)
        assert error["code"] == "context_length_exceeded"
