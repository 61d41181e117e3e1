"""`allowed_token_ids` and `bad_words` from the HTTP body to the tokens, on a real engine."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support.checkpoints import make_checkpoint
from support.real_app import real_app
from taco_gateway.text.tokenizer.loading import load_tokenizer
from taco_proto.config import ModelConfig


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("temperature", [0, 1.0, 30.0])
async def test_banned_tokens_are_never_generated(checkpoint: Path, temperature: float) -> None:
    tokenizer = load_tokenizer(ModelConfig(model=str(checkpoint)))
    assert tokenizer is not None
    text = "The quick brown fox jumps over the lazy dog"
    allowed = tokenizer.encode(text, add_special_tokens=False)
    bad = [f"{tokenizer.decode([i])}{tokenizer.decode([j])}" for i, j in pairwise(allowed)]
    body: dict[str, Any] = {
        "prompt": text,
        "max_tokens": 60,
        "temperature": temperature,
        "seed": 5,
        "logprobs": 0,
        "return_tokens_as_token_ids": True,
        "allowed_token_ids": allowed,
    }
    async with real_app(checkpoint) as http:
        free = (await http.post("/v1/completions", json=body)).json()["choices"][0]
        kept = (await http.post("/v1/completions", json={**body, "bad_words": bad})).json()
    assert {_ids(free)[i] in allowed for i in range(60)} == {True}
    tokens = _ids(kept["choices"][0])
    assert set(tokens) <= set(allowed)
    banned = {tuple(tokenizer.encode(word, add_special_tokens=False)) for word in bad}
    banned |= {
        tuple(tokenizer.encode(f" {word.lstrip(' ')}", add_special_tokens=False)) for word in bad
    }
    found = {tuple(tokens[start:end]) for start in range(60) for end in range(start + 1, start + 5)}
    assert not found & banned


def _ids(choice: dict[str, Any]) -> list[int]:
    return [int(name.removeprefix("token_id:")) for name in choice["logprobs"]["tokens"]]
