"""What evaluation harnesses compute from log probabilities, against transformers.

lm-eval scores a continuation with `echo`, `logprobs` and `max_tokens` 0 or 1: it sums
`token_logprobs` from the context's length on, leaving out the last entry where one token was
generated.
"""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers

from support.checkpoint_tokenizer import BOS_TOKEN, BOS_TOKEN_ID, EOS_TOKEN_ID
from support.checkpoints import make_checkpoint
from support.real_app import real_app
from taco_gateway.text.tokenizer.loading import load_tokenizer
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.config import ModelConfig

CONTEXT, CONTINUATION = "The quick brown fox", " jumps over the lazy dog"
TO_EOS = {str(EOS_TOKEN_ID): 100.0}


@pytest.fixture(scope="module", params=[False, True], ids=["no BOS", "BOS"])
def checkpoint(tmp_path_factory: pytest.TempPathFactory, request: Any) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), add_bos=request.param)


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(checkpoint).eval()


@pytest.fixture
def tokenizer(checkpoint: Path) -> Tokenizer:
    loaded = load_tokenizer(ModelConfig(model=str(checkpoint)))
    assert loaded is not None
    return loaded


def logprobs_of(oracle: Any, ids: list[int]) -> list[float]:
    """The log probability of every token but the first."""
    with torch.no_grad():
        rows = torch.log_softmax(oracle(torch.tensor([ids])).logits[0].float(), -1)
    return [float(rows[i, token]) for i, token in enumerate(ids[1:])]


async def completion(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await http.post("/v1/completions", json={"temperature": 0, **body})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_loglikelihood_of_a_continuation(
    checkpoint: Path, oracle: Any, tokenizer: Tokenizer, max_tokens: int, as_ids: bool
) -> None:
    ids = tokenizer.encode(CONTEXT + CONTINUATION)
    context_len = len(tokenizer.encode(CONTEXT))
    expected = logprobs_of(oracle, ids)
    async with real_app(checkpoint) as http:
        answer = await completion(
            http,
            prompt=ids if as_ids else CONTEXT + CONTINUATION,
            max_tokens=max_tokens,
            logprobs=1,
            echo=True,
            logit_bias=TO_EOS,  # the token that is generated is EOS
        )
    (choice,) = answer["choices"]
    columns = choice["logprobs"]
    assert {len(column) for column in columns.values()} == {len(ids) + max_tokens}
    end = -1 if max_tokens else None
    scores = columns["token_logprobs"][context_len:end]
    assert len(scores) == len(ids) - context_len
    assert sum(scores) == pytest.approx(sum(expected[context_len - 1 :]), abs=1e-3)
    assert columns["token_logprobs"][0] is None
    assert columns["token_logprobs"][1 : len(ids)] == pytest.approx(expected, abs=1e-3)
    rows = zip(columns["tokens"], columns["token_logprobs"], columns["top_logprobs"], strict=True)
    assert all(top[token] == logprob for token, logprob, top in list(rows)[1:])
    # Text, tokens and offsets agree; special tokens of a prompt of ids are text, too.
    bos = BOS_TOKEN if as_ids and ids[0] == BOS_TOKEN_ID else ""
    assert choice["text"] == "".join(columns["tokens"]) == bos + CONTEXT + CONTINUATION
    offsets, num_chars = [], 0
    for token in columns["tokens"]:
        offsets.append(num_chars)
        num_chars += len(token)
    assert columns["text_offset"] == offsets
    if max_tokens:
        assert columns["tokens"][-1] == ""
        assert choice["finish_reason"] == "stop"


async def test_special_tokens_in_a_text_appear_in_its_echo(checkpoint: Path) -> None:
    text = f"{BOS_TOKEN}user: hi<|end|>\nassistant:"
    async with real_app(checkpoint) as http:
        answer = await completion(http, prompt=text, max_tokens=0, logprobs=0, echo=True)
    (choice,) = answer["choices"]
    columns = choice["logprobs"]
    assert choice["text"] == "".join(columns["tokens"]) == text
    assert all(
        text.startswith(token, offset)
        for token, offset in zip(columns["tokens"], columns["text_offset"], strict=True)
    )
    assert "<|end|>" in columns["tokens"]


async def test_every_token_has_a_logprob_entry_streamed_or_not(
    checkpoint: Path, oracle: Any, tokenizer: Tokenizer
) -> None:
    """Three tokens, of which the last is EOS, by both surfaces."""
    messages = [{"role": "user", "content": "hi"}]
    words = {
        i: tokenizer.decode([i]) for i in tokenizer.encode("fox dog", add_special_tokens=False)
    }
    body = {
        "temperature": 0,
        "max_tokens": 3,
        "min_tokens": 2,
        "logit_bias": {**{str(token): 50.0 for token in words}, **TO_EOS},
    }
    async with real_app(checkpoint) as http:
        whole = (await completion(http, prompt=CONTEXT, logprobs=2, **body))["choices"][0]
        chunks = await _chunks(http, "/v1/completions", prompt=CONTEXT, logprobs=2, **body)
        asked = {"messages": messages, "logprobs": True, "top_logprobs": 2, **body}
        response = await http.post("/v1/chat/completions", json=asked)
        chat = response.json()["choices"][0]
        chat_chunks = await _chunks(http, "/v1/chat/completions", **asked)
        tokenized = (await http.post("/tokenize", json={"messages": messages})).json()
    assert len(whole["logprobs"]["tokens"]) == 3
    assert whole["text"] == "".join(whole["logprobs"]["tokens"])
    for name, column in whole["logprobs"].items():
        parts = [chunk["logprobs"][name] for chunk in chunks if chunk["logprobs"]]
        assert [item for part in parts for item in part] == column
    entries = chat["logprobs"]["content"]
    assert len(entries) == 3
    assert [entry["token"] == "" for entry in entries] == [False, False, True]
    assert chat["message"]["content"] == "".join(entry["token"] for entry in entries)
    streamed = [c["logprobs"]["content"] for c in chat_chunks if c["logprobs"]]
    assert [entry for part in streamed for entry in part] == entries
    for entry in entries:
        top = [candidate["logprob"] for candidate in entry["top_logprobs"]]
        assert top == sorted(top, reverse=True)
        assert len(top) == 2
    ids_of = {text: token_id for token_id, text in words.items()}
    generated = [ids_of[entry["token"]] for entry in entries[:2]]
    expected = logprobs_of(oracle, [*tokenized["tokens"], *generated, EOS_TOKEN_ID])[-3:]
    assert [entry["logprob"] for entry in entries] == pytest.approx(expected, abs=1e-3)


async def _chunks(http: httpx.AsyncClient, path: str, **body: Any) -> list[dict[str, Any]]:
    response = await http.post(path, json={"stream": True, **body})
    assert response.status_code == 200, response.text
    frames = [frame.removeprefix("data: ") for frame in response.text.split("\n\n")]
    events = [json.loads(frame) for frame in frames if frame.startswith("{")]
    return [event["choices"][0] for event in events]
