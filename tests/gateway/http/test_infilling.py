"""`suffix` of completions: the model writes the text between prompt and suffix."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from support.gateway_app import App, AppMaker, build_app, write_tokenizer
from support.scripted_engine import prompt_of, replay
from taco_gateway.text.tokenizer.infilling import InfillEncoder
from taco_gateway.text.tokenizer.loading import load_tokenizer
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.config import ModelConfig
from taco_proto.requests import FinishReason

PATH = "/v1/completions"
MARKERS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = write_tokenizer(tmp_path_factory.mktemp("coder"))
    backend = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    backend.add_tokens(MARKERS)
    backend.save(str(path / "tokenizer.json"))
    tokenizer = load_tokenizer(ModelConfig(model=str(path)))
    assert tokenizer is not None
    return tokenizer


@pytest.fixture
def app(coder: Tokenizer) -> Iterator[App]:
    app = build_app(replay(coder.encode(" jumps"), FinishReason.STOP), coder)
    yield app
    app.gateway.close()


async def error_of(app: App, **body: Any) -> dict[str, Any]:
    response = await app.http.post(PATH, content=json.dumps(body))
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert isinstance(error, dict)
    return error


async def test_the_prompt_has_both_texts_and_markers_end_the_answer(
    app: App, coder: Tokenizer
) -> None:
    prompts = ["The fox", "A dog"]
    body = {"prompt": prompts, "suffix": " over", "stop_token_ids": [7]}
    response = await app.http.post(PATH, json=body)
    assert [choice["text"] for choice in response.json()["choices"]] == [" jumps"] * 2
    encoder = InfillEncoder.of(coder)
    assert encoder is not None
    for request, prompt in zip(app.engine.requests, prompts, strict=True):
        assert prompt_of(request) == encoder.encode(prompt, " over")
        markers = {coder.added_tokens[text] for text in MARKERS}
        assert set(request.sampling.stop_token_ids or ()) == {7, *markers}


async def test_ignore_eos_also_ignores_the_markers(app: App) -> None:
    await app.http.post(PATH, json={"prompt": "a", "suffix": "b", "ignore_eos": True})
    assert not app.engine.requests[0].sampling.stop_token_ids


async def test_an_empty_suffix_is_none(app: App, coder: Tokenizer) -> None:
    await app.http.post(PATH, json={"prompt": "The fox", "suffix": ""})
    assert prompt_of(app.engine.requests[0]) == coder.encode("The fox")


async def test_a_model_without_markers_rejects_it(make_app: AppMaker) -> None:
    app = make_app(replay([5]))
    error = await error_of(app, prompt="The fox", suffix=" over")
    assert (error["param"], error["code"]) == ("suffix", "unsupported_parameter")
    without = make_app(replay([5]), with_tokenizer=False)
    assert (await error_of(without, prompt="The fox", suffix=" over"))["param"] == "suffix"
    assert not app.engine.requests


async def test_what_excludes_a_suffix_is_named(app: App) -> None:
    for fields, param in (
        ({"prompt": [5, 6]}, "suffix"),
        ({"echo": True}, "echo"),
        ({"truncate_prompt_tokens": -1}, "truncate_prompt_tokens"),
        ({"suffix": 7}, "suffix"),
    ):
        body = {"prompt": "The fox", "suffix": " over", **fields}
        assert (await error_of(app, **body))["param"] == param, fields
    too_long = await error_of(app, prompt="The fox", suffix=" over" * 1000)
    assert too_long["code"] == "context_length_exceeded"
    assert not app.engine.requests
