"""A budget ends reasoning whose end marker is several tokens, on a real engine."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from support.checkpoints import make_checkpoint
from support.every_draft import verify_every_draft
from support.local_engine import serve
from support.real_app import real_app
from taco_proto.config import SpeculationConfig
from taco_scheduler.server.service import SchedulerService

PATH = "/v1/chat/completions"
TEMPLATE = (
    "{% for t in tools %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.content }}\n"
    "{% endfor %}{% if think %}<think>\n{% endif %}"
)
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "chat_template_kwargs": {"think": True},
    "return_token_ids": True,
    "ignore_eos": True,
    "max_tokens": 40,
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CHOICE = {"guided_choice": ["yes", "no"]}
NGRAM = {"speculation": SpeculationConfig(ngram_max=3, ngram_min=1)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its vocabulary has no token for a marker."""
    return make_checkpoint(
        tmp_path_factory.mktemp("model"), chat_template=TEMPLATE, max_position_embeddings=1024
    )


@pytest.fixture(scope="module")
def end(checkpoint: Path) -> list[int]:
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    found: list[int] = tokenizer.encode("</think>", add_special_tokens=False).ids
    assert len(found) > 2
    return found


@asynccontextmanager
async def app(checkpoint: Path, **worker: Any) -> AsyncIterator[httpx.AsyncClient]:
    gateway = {
        "enable_auto_tool_choice": True, "tool_call_parser": "hermes", "reasoning_parser": "qwen3"
    }  # fmt: skip
    async with real_app(checkpoint, gateway, **worker) as http:
        yield http


async def answer(http: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await http.post(PATH, json={**CHAT, **fields})
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def is_marked(token_ids: list[int], budget: int, end: list[int]) -> bool:
    """Whether the marker follows the budget: a character whose bytes are incomplete ends first."""
    starts = range(budget, budget + 4)
    return any(token_ids[start : start + len(end)] == end for start in starts)


async def test_the_whole_marker_is_written(checkpoint: Path, end: list[int]) -> None:
    async with app(checkpoint) as http:
        for budget in (0, 1, 7):
            for more in ({}, CHOICE, {"tools": [TOOL]}, {"temperature": 0}, {"min_tokens": 30}):
                choice = await answer(http, seed=budget, **more, thinking_token_budget=budget)
                assert is_marked(choice["token_ids"], budget, end), more
                assert budget or not choice["message"].get("reasoning")
                if more is CHOICE:
                    assert choice["message"]["content"] in ("yes", "no")
                    assert choice["finish_reason"] == "stop"
        required = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 400}
        choice = await answer(http, **required, thinking_token_budget=4)
        assert is_marked(choice["token_ids"], 4, end)
        assert choice["message"]["tool_calls"][0]["function"]["name"] == "f"
        unlimited = await answer(http, seed=1, thinking_token_budget=-1)
        assert "</think>" not in str(unlimited["message"])


async def test_without_a_budget_the_tokens_before_are_the_same(
    checkpoint: Path, end: list[int]
) -> None:
    async with app(checkpoint) as http:
        for text in ("hi", "a b c", "Hello!"):
            fields = {"messages": [{"role": "user", "content": text}], "temperature": 0}
            free = await answer(http, **fields)
            kept = await answer(http, **fields, thinking_token_budget=9)
            assert kept["token_ids"][:9] == free["token_ids"][:9]
            assert is_marked(kept["token_ids"], 9, end)


@pytest.mark.parametrize("worker", [
    NGRAM, {"max_forced_tokens": 0}, {"num_blocks": 8}, {"num_blocks": 8, **NGRAM},
], ids=["drafts", "one token a step", "preemption", "drafts and preemption"])  # fmt: skip
async def test_tokens_do_not_depend_on_the_schedule(
    checkpoint: Path, end: list[int], worker: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    verify_every_draft(monkeypatch)
    services: list[SchedulerService] = []

    @asynccontextmanager
    async def remembered(executor: Any) -> AsyncIterator[SchedulerService]:
        async with serve(executor) as service:
            services.append(service)
            yield service

    monkeypatch.setattr("support.real_app.serve", remembered)
    # Two of the long answers at a time need more than 8 blocks.
    requests: list[dict[str, Any]] = [
        {
            "seed": seed,
            "temperature": temperature,
            "thinking_token_budget": 3 * seed,
            "max_tokens": 100,
            **more,
        }
        for seed, temperature in enumerate((0.0, 1.0, 0.0, 1.2))
        for more in ({}, CHOICE)
    ]
    async with app(checkpoint) as http:
        alone = [await answer(http, **fields) for fields in requests]
    async with app(checkpoint, **worker) as http:
        together = await asyncio.gather(*(answer(http, **fields) for fields in requests))
    if "num_blocks" in worker:
        assert services[-1].engine.counters.num_preemptions > 0
    for fields, first, second in zip(requests, alone, together, strict=True):
        assert second["token_ids"] == first["token_ids"], fields
        assert second["message"] == first["message"]
        budget = fields["thinking_token_budget"]
        assert is_marked(first["token_ids"], budget, end)


async def test_streamed_equals_unstreamed(checkpoint: Path) -> None:
    async with app(checkpoint, **NGRAM) as http:
        for budget in (0, 5):
            fields = {"seed": 3, "thinking_token_budget": budget}
            whole = (await answer(http, **fields))["message"]
            response = await http.post(PATH, json={**CHAT, **fields, "stream": True})
            made = {"content": "", "reasoning": ""}
            for line in response.text.splitlines():
                if line.startswith("data: {"):
                    delta = json.loads(line[6:])["choices"][0]["delta"]
                    for name in made:
                        made[name] += delta.get(name) or ""
            assert made == {name: whole.get(name) or "" for name in made}
