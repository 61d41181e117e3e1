"""Beam search beside sequences with drafts, and in processes of which one is killed."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.patience import PATIENCE_SECONDS, wait_until
from support.serving import Serving
from taco_llm import LLM, SamplingParams


def test_a_killed_worker_changes_no_text(tmp_path: Path) -> None:
    body = {
        "model": "demo",
        "prompt": "import ",
        "use_beam_search": True,
        "best_of": 4,
        "n": 2,
        "max_tokens": 300,
        "ignore_eos": True,
    }
    flags = ["--num-gpu-blocks-override", "256"]
    with (
        Serving(tmp_path, "demo", *flags).wait_ready() as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS) as http,
        ThreadPoolExecutor(1) as pool,
    ):

        def ask() -> list[str]:
            answer = http.post("/v1/completions", json=body)
            return [choice["text"] for choice in answer.json()["choices"]]

        expected = ask()
        assert len(set(expected)) == 2
        before = server.metric("vllm:generation_tokens_total")
        again = pool.submit(ask)
        wait_until(
            lambda: server.metric("vllm:generation_tokens_total") > before + 40, "tokens of beams"
        )
        server.children()["worker"].kill()
        assert not again.done()
        assert again.result(PATIENCE_SECONDS) == expected
        wait_until(server.is_idle, "all blocks are free")


NGRAM: dict[str, Any] = {"speculative_model": "[ngram]", "ngram_prompt_lookup_max": 3}
SPECULATION: dict[str, dict[str, Any]] = {
    "draft model": {"speculative_model": "demo-draft", "cpu_draft_worker": True},
    "medusa": {"speculative_model": "demo-medusa"},
    "eagle": {"speculative_model": "demo-eagle"},
    "n-grams": NGRAM,
    "no log probabilities": NGRAM | {"disable_logprobs_during_spec_decoding": True},
}


def demo_answers(**flags: Any) -> list[list[list[int]]]:
    """Beams beside sampled sequences, whose drafts are verified."""
    common: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True}
    params = [
        SamplingParams(n=3, use_beam_search=True, **common),
        SamplingParams(temperature=0, **common),
        SamplingParams(n=2, best_of=4, use_beam_search=True, repetition_penalty=1.1, **common),
    ]
    with LLM("demo", num_threads=1, num_gpu_blocks_override=256, **flags) as llm:
        outputs = llm.generate(["import os\n", "def f(", "class A:\n"], params, use_tqdm=False)
    return [[text.token_ids for text in output.outputs] for output in outputs]


@pytest.mark.parametrize("flags", SPECULATION.values(), ids=list(SPECULATION))
def test_speculation_for_others_changes_no_text(flags: dict[str, Any]) -> None:
    assert demo_answers(**flags) == demo_answers()
