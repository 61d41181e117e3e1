"""Each field of each route does what docs/request-fields.md says, on the running application."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from support.checkpoint_tokenizer import save_tokenizer
from support.gateway_app import App, build_app
from support.request_fields import (
    CHAT,
    COMPLETIONS,
    DETOKENIZE,
    HONOURED,
    PAGE,
    REJECTED_BY,
    REJECTED_HERE,
    RESPONSES,
    ROUTES,
    TOKENIZE,
    RequestField,
    fields_page,
    request_fields,
)
from support.scripted_engine import MODEL_INFO, Step
from taco_gateway.engine.engine_client import SequenceUpdate
from taco_gateway.text.tokenizer.loading import load_tokenizer
from taco_proto.config import ModelConfig
from taco_proto.logprobs import LogprobColumns
from taco_proto.requests import FinishReason, GenerateRequest

TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The"}]
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}{{ tone }}{{ reasoning_effort }}"
    "{{ tools }}{{ documents }}{{ verbosity }}"
)
MINIMAL: dict[str, dict[str, Any]] = {
    CHAT: {"messages": TURNS, "seed": 1},
    COMPLETIONS: {"prompt": "hi", "seed": 1},
    RESPONSES: {"input": TURNS, "seed": 1},
    TOKENIZE: {"messages": TURNS},
    DETOKENIZE: {"tokens": [5, 6]},
}
FUNCTIONS = [{"name": "f"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
FLAT_TOOLS = [{"type": "function", "name": "f"}]
LOGPROBS = {"include": ["message.output_text.logprobs"]}
CALL = '<tool_call>{"name": "f"}</tool_call>'
ANSWER = f"<think>Hm</think>The fox{CALL}{CALL}"
CONTINUED = {"add_generation_prompt": False, "continue_final_message": True}

# A value of each field, which changes the answer or what the engine is asked for.
VALUES: dict[str, Any] = {
    "add_generation_prompt": False,
    "add_special_tokens": False,
    "allowed_token_ids": [50, 51],
    "bad_words": ["fox"],
    "best_of": 2,
    "cache_control": {"type": "ephemeral"},
    "cache_salt": "salt",
    "chat_template": "{{ messages[0].content }}",
    "chat_template_kwargs": {"tone": "calm"},
    "continue_final_message": True,
    "detokenize": False,
    "documents": [{"text": "a"}],
    "early_stopping": "never",
    "echo": True,
    "frequency_penalty": 0.5,
    "function_call": "none",
    "functions": FUNCTIONS,
    "guided_choice": ["a", "b"],
    "guided_decoding_backend": "xgrammar:disable-any-whitespace",
    "guided_grammar": 'root ::= "a"',
    "guided_json": {"type": "object"},
    "guided_regex": "[ab]",
    "guided_whitespace_pattern": " ?",
    "ignore_eos": True,
    "include": ["message.output_text.logprobs"],
    "include_reasoning": False,
    "include_stop_str_in_output": True,
    "input": "bye",
    "instructions": "calm",
    "length_penalty": 2.0,
    "logit_bias": {"5": 1.0},
    "logprob_token_ids": [50, 51],
    "logits_processors": ["named:Processor"],
    "logprobs": 1,
    "max_completion_tokens": 1,
    "max_output_tokens": 1,
    "max_tokens": 1,
    "max_tool_calls": 1,
    "messages": [{"role": "user", "content": "bye"}],
    "metadata": {"a": "b"},
    "min_p": 0.1,
    "min_tokens": 1,
    "model": "no-such-model",
    "n": 2,
    "no_repeat_ngram_size": 3,
    "parallel_tool_calls": False,
    "presence_penalty": 0.5,
    "priority": 3,
    "prompt": "bye",
    "prompt_cache_key": "key",
    "prompt_cache_retention": "24h",
    "prompt_logprobs": 0,
    "reasoning": {"effort": "low"},
    "reasoning_effort": "low",
    "repetition_penalty": 1.5,
    "response_format": {"type": "json_object"},
    "return_token_ids": True,
    "return_token_strs": True,
    "return_tokens_as_token_ids": True,
    "safety_identifier": "me",
    "seed": 2,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "stop": ["fox"],
    "stop_token_ids": [50],
    "stream": True,
    "stream_options": {"include_usage": True},
    "stream_options.continuous_usage_stats": True,
    "stream_options.include_usage": True,
    "structured_outputs": {"choice": ["a"]},
    "suffix": "!",
    "temperature": 0.5,
    "text": {"verbosity": "low"},
    "thinking_token_budget": 1,
    "tokens": [7],
    "tool_choice": "none",
    "tools": TOOLS,
    "top_k": 3,
    "top_logprobs": 1,
    "top_p": 0.5,
    "truncate_prompt_tokens": 1,
    "truncation_side": "right",
    "verbosity": "low",
    "vllm_xargs": {"argument": 1},
    "use_beam_search": True,
    "user": "me",
}
# What must stand beside a field, on a route or on all.
BESIDE: dict[str | tuple[str, str], dict[str, Any]] = {
    "stream_options": {"stream": True},
    "stream_options.continuous_usage_stats": {"stream": True},
    "stream_options.include_usage": {"stream": True},
    "top_logprobs": {"logprobs": True},
    "guided_decoding_backend": {"guided_json": {"type": "object"}},
    ("logprob_token_ids", CHAT): {"logprobs": True},
    "guided_whitespace_pattern": {"guided_json": {"type": "object"}},
    "truncation_side": {"truncate_prompt_tokens": 1},
    "early_stopping": {"use_beam_search": True},
    "length_penalty": {"use_beam_search": True},
    "continue_final_message": {"add_generation_prompt": False},
    "function_call": {"functions": FUNCTIONS},
    "parallel_tool_calls": {"tools": TOOLS},
    "tool_choice": {"tools": TOOLS},
    ("parallel_tool_calls", RESPONSES): {"tools": FLAT_TOOLS},
    ("tool_choice", RESPONSES): {"tools": FLAT_TOOLS},
    ("top_logprobs", RESPONSES): LOGPROBS,
    ("logprob_token_ids", RESPONSES): LOGPROBS,
    ("return_tokens_as_token_ids", RESPONSES): LOGPROBS,
    ("add_special_tokens", RESPONSES): {"add_special_tokens": True},
    ("echo", CHAT): CONTINUED,
    ("return_tokens_as_token_ids", CHAT): {"logprobs": True},
    ("return_tokens_as_token_ids", COMPLETIONS): {"logprobs": 0},
    ("add_special_tokens", CHAT): {"add_special_tokens": True},
}
ON_ROUTE: dict[tuple[str, str], Any] = {
    ("logprobs", CHAT): True,
    ("add_special_tokens", TOKENIZE): True,
    ("tools", RESPONSES): FLAT_TOOLS,
}
DIFFERING = ("id", "created", "created_at", "completed_at")
ANYTHING: list[Any] = ["x", 7, 0.25, True, ["x"], {"x": 1}]


def answers(request: GenerateRequest, answer: list[int]) -> list[Step]:
    """The same tokens for each sequence, with what was asked for of log probabilities."""
    sampling = request.sampling
    steps: list[Step] = []
    assert sampling.max_tokens is not None
    prompt = None
    if sampling.prompt_logprobs is not None:
        prompt = LogprobColumns()
        for _ in range(len(request.token_ids) // 4 - 1):
            prompt.append_row([50], [-1.0], [1])
        steps.append(SequenceUpdate(0, [], prompt_logprobs=prompt))
    for index in range(sampling.n):
        ids = answer[: sampling.max_tokens]
        rows = None
        if sampling.logprobs is not None:
            width = 1 + sampling.logprobs
            count = width * len(ids)
            entries = [entry for own in ids for entry in (own, *[50] * sampling.logprobs)]
            rows = LogprobColumns([width] * len(ids), entries, [-1.0] * count, [1] * count)
        steps.append(SequenceUpdate(index, ids, FinishReason.LENGTH, logprobs=rows))
    return steps


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    path: Path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(path, add_bos=True)
    backend = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    backend.add_tokens(["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"])
    backend.add_tokens(["<think>", "</think>"])
    backend.save(str(path / "tokenizer.json"))
    tokenizer = load_tokenizer(ModelConfig(model=str(path)))
    assert tokenizer is not None
    answer = tokenizer.encode(ANSWER, add_special_tokens=False)
    app = build_app(
        lambda request: answers(request, answer),
        tokenizer,
        chat_template=TEMPLATE,
        trust_request_chat_template=True,
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
        reasoning_parser="qwen3",
        info=replace(MODEL_INFO, logits_processors=("always:Processor", "named:Processor")),
        logits_processor_pattern="named",
    )
    yield app
    app.gateway.engine.close()


async def outcome(app: App, route: str, body: dict[str, Any]) -> tuple[int, str, Any]:
    """The status, the answer but for what differs each time, and what the engine was asked."""
    app.engine.streams.clear()
    response = await app.http.post(route, json=body)
    text = re.sub(r"\b(resp|rs|msg|fc|call)_\w+", r"\1", response.text)
    asked = [replace(request, request_id="", deadline=None) for request in app.engine.requests]
    if response.headers["content-type"] == "application/json":
        answer = json.loads(text)
        kept = {name: answer[name] for name in answer if name not in DIFFERING}
        return response.status_code, str(kept), asked
    if route == RESPONSES:
        return response.status_code, re.sub(r'"(created|completed)_at":\d+', "", text), asked
    return response.status_code, text.split('"choices":', 1)[1], asked


def with_field(body: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    outer, _, inner = name.partition(".")
    return {**body, outer: {inner: value} if inner else value}


@pytest.mark.parametrize("field", request_fields(), ids=lambda field: field.name)
async def test_a_field_does_what_the_table_says(app: App, field: RequestField) -> None:
    for route in ROUTES:
        await check_field(app, field, route)


async def check_field(app: App, field: RequestField, route: str) -> None:
    name, state = field.name, field.states[route]
    body = MINIMAL[route] | BESIDE.get((name, route), BESIDE.get(name, {}))
    if state == HONOURED:
        if name == "prompt" and route == TOKENIZE:
            body = {"prompt": "hi"}
        before = await outcome(app, route, body)
        assert before[0] == 200, before
        value = ON_ROUTE.get((name, route), VALUES[name])
        after = await outcome(app, route, with_field(body, name, value))
        assert after[0] == (404 if name == "model" else 200), after
        assert after[1:] != before[1:]
        return
    body = MINIMAL[route]
    before = await outcome(app, route, body)
    neutral = REJECTED_BY[route].get(name, ())
    for value in (*ANYTHING, *neutral):
        after = await outcome(app, route, with_field(body, name, value))
        if state == REJECTED_HERE and value not in neutral:
            error = (await app.http.post(route, json=with_field(body, name, value))).json()
            assert after[0] == 400
            assert not app.engine.requests
            assert error["error"]["param"] == name
            assert error["error"]["code"] == "unsupported_parameter"
        else:
            assert after == before


def test_the_page_is_written_from_the_schemas() -> None:
    hint = "run `python -m support.request_fields` in tests/"
    assert PAGE.read_text() == fields_page(), hint
