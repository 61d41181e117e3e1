"""Pinned prefixes through all services."""

from pathlib import Path
from typing import Any

import openai
from openai.types import CompletionUsage

from support.serving import Serving

MARK: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
BLOCK_TOKENS = 16


def ask(client: openai.OpenAI, system: dict[str, Any], question: str) -> CompletionUsage:
    messages: Any = [system, {"role": "user", "content": question}]
    answer = client.chat.completions.create(model="demo", messages=messages, max_tokens=1)
    assert answer.usage is not None
    return answer.usage


def num_cached(usage: CompletionUsage) -> int:
    assert usage.prompt_tokens_details is not None
    return usage.prompt_tokens_details.cached_tokens or 0


def test_a_pinned_prefix_survives_a_flood(tmp_path: Path) -> None:
    pinned = {"role": "system", "content": "Answer in one word, and be polite. " * 12, **MARK}
    plain = {"role": "system", "content": "Answer at length, and be impolite. " * 12}
    with Serving(tmp_path, "demo", "--num-gpu-blocks-override", "64") as serving:
        serving.wait_ready()
        with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none") as client:
            num_tokens = ask(client, pinned, "What does len do?").prompt_tokens
            ask(client, plain, "What does len do?")
            num_pinned = serving.metric("taco:worker_pinned_blocks")
            assert num_pinned >= num_tokens // BLOCK_TOKENS - 1 > 0, "all but the question"
            for topic in range(20, 28):
                client.completions.create(model="demo", prompt=[topic] * 200, max_tokens=1)
            assert num_cached(ask(client, pinned, "And abs?")) == num_pinned * BLOCK_TOKENS
            assert num_cached(ask(client, plain, "And abs?")) == 0
        assert serving.metric("taco:prefix_pins_total") == 2
