"""Log probabilities of the whole vocabulary, and of listed tokens, over HTTP and offline."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest

from support.checkpoints import make_checkpoint
from support.real_app import real_app
from taco_llm import LLM, SamplingParams
from taco_proto.errors import InvalidParameterError

PROMPT = list(range(20, 40))
COMPLETION: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "max_tokens": 3}
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 3,
    "logprobs": True,
    "return_tokens_as_token_ids": True,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


def is_whole(logprobs: list[float], vocab_size: int) -> bool:
    return len(logprobs) == vocab_size and math.isclose(
        math.fsum(map(math.exp, logprobs)), 1, abs_tol=1e-4
    )


async def test_http(checkpoint: Path) -> None:
    async with real_app(checkpoint, max_logprobs=-1) as http:

        async def post(route: str, body: dict[str, Any]) -> Any:
            answer = await http.post(route, json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()["choices"][0]

        fields: dict[str, Any] = {"logprobs": -1, "prompt_logprobs": -1}
        names = {"return_tokens_as_token_ids": True}
        whole = await post("/v1/completions", COMPLETION | fields | names)
        vocab_size = len(whole["logprobs"]["top_logprobs"][0])
        assert vocab_size > 100
        for position in whole["logprobs"]["top_logprobs"]:
            assert is_whole(list(position.values()), vocab_size)
        assert whole["prompt_logprobs"][0] is None
        for position in whole["prompt_logprobs"][1:]:
            entries = [entry["logprob"] for entry in position.values()]
            assert is_whole(entries, vocab_size)
        chat = await post("/v1/chat/completions", CHAT | {"top_logprobs": -1})
        for position in chat["logprobs"]["content"]:
            entries = [entry["logprob"] for entry in position["top_logprobs"]]
            assert is_whole(entries, vocab_size)
        # Listed tokens have the values that they have among all.
        listed = [7, vocab_size - 1, 50]
        bodies = (
            COMPLETION | names | {"logprob_token_ids": listed},
            COMPLETION | names | {"logprob_token_ids": listed, "logprobs": 5},
        )
        for body in bodies:
            choice = await post("/v1/completions", body)
            assert choice["text"] == whole["text"]
            for some, every in zip(
                choice["logprobs"]["top_logprobs"], whole["logprobs"]["top_logprobs"], strict=True
            ):
                assert {f"token_id:{i}" for i in listed} <= some.keys()
                assert len(some) <= 1 + len(listed)
                assert some == pytest.approx({name: every[name] for name in some}, abs=1e-5)
        chat = await post("/v1/chat/completions", CHAT | {"logprob_token_ids": listed})
        for position in chat["logprobs"]["content"]:
            found = [entry["token"] for entry in position["top_logprobs"]]
            assert found == [f"token_id:{i}" for i in listed]
        stream = await http.post(
            "/v1/completions", json=bodies[0] | {"stream": True, "logprob_token_ids": [7]}
        )
        chunks = [json.loads(line[6:]) for line in stream.text.splitlines() if '"choices"' in line]
        tops = [top for c in chunks for top in (c["choices"][0]["logprobs"] or {}).get(
            "top_logprobs", [])]  # fmt: skip
        assert len(tops) == 3
        assert all("token_id:7" in top for top in tops)


BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("/v1/completions", {"logprobs": -1}, "logprobs", "at most 20"),
    ("/v1/completions", {"logprobs": -2}, "logprobs", "-1"),
    ("/v1/completions", {"prompt_logprobs": -1}, "prompt_logprobs", "at most 20"),
    ("/v1/completions", {"prompt_logprobs": -2}, "prompt_logprobs", "between -1"),
    ("/v1/completions", {"logprob_token_ids": [10**6]}, "logprob_token_ids", "not in 0"),
    ("/v1/completions", {"logprob_token_ids": [-1]}, "logprob_token_ids", "between 0"),
    ("/v1/completions", {"logprob_token_ids": list(range(21))}, "logprob_token_ids", "at most 20"),
    ("/v1/completions", {"logprob_token_ids": [1] * 10**5}, "logprob_token_ids", "at most 128"),
    ("/v1/completions", {"logprob_token_ids": ["7"]}, "logprob_token_ids", ""),
    ("/v1/chat/completions", {"top_logprobs": -1}, "top_logprobs", "at most 20"),
    ("/v1/chat/completions", {"logprobs": False, "logprob_token_ids": [1]}, "logprob_token_ids",
     "needs logprobs=true"),
]  # fmt: skip


async def test_limits_are_one_error(checkpoint: Path) -> None:
    async with real_app(checkpoint) as http:
        alone = (await http.post("/v1/completions", json=COMPLETION)).json()["choices"]
        beside = asyncio.create_task(http.post("/v1/completions", json=COMPLETION))
        for route, fields, param, words in BAD:
            base = COMPLETION if route == "/v1/completions" else CHAT
            answer = await http.post(route, json=base | fields)
            error = answer.json()["error"]
            assert answer.status_code == 400, (fields, error)
            assert error["param"].partition("[")[0].partition(".")[0] == param, error
            assert words in error["message"], error
        assert (await beside).json()["choices"] == alone


@pytest.mark.parametrize("drafts", [False, True], ids=["plain", "with drafts"])
def test_offline(checkpoint: Path, drafts: bool) -> None:
    speculation: dict[str, Any] = (
        {"speculative_model": "[ngram]", "ngram_prompt_lookup_max": 3} if drafts else {}
    )
    settings = {"num_gpu_blocks_override": 64, "num_threads": 1, "max_num_seqs": 8, **speculation}
    every = SamplingParams(
        temperature=0, max_tokens=12, logprobs=-1, prompt_logprobs=-1, ignore_eos=True
    )
    listed = every.with_updates(logprobs=None, prompt_logprobs=None, logprob_token_ids=[9, 8])
    prompts = [[20, 21, 22, 23] * 3, PROMPT]
    with LLM(str(checkpoint), max_logprobs=-1, **settings) as llm:
        all_of, some_of = (
            llm.generate(prompts, params, use_tqdm=False) for params in (every, listed)
        )
        for whole, some in zip(all_of, some_of, strict=True):
            vocab_size = len(whole.prompt_logprobs[1] or ())  # type: ignore[index]
            positions = [*whole.prompt_logprobs[1:], *whole.outputs[0].logprobs]  # type: ignore[index, misc]
            for position in positions:
                assert is_whole([entry.logprob for entry in position.values()], vocab_size)
                ranks = sorted(entry.rank for entry in position.values())
                assert ranks == list(range(1, vocab_size + 1))
            assert some.outputs[0].token_ids == whole.outputs[0].token_ids
            pairs = zip(
                some.outputs[0].logprobs or (), whole.outputs[0].logprobs or (), strict=True
            )
            for few, many in pairs:
                assert {8, 9} <= few.keys()
                for token_id, entry in few.items():
                    assert entry.logprob == pytest.approx(many[token_id].logprob, abs=1e-5)
                    assert entry.rank == many[token_id].rank
    with pytest.raises(InvalidParameterError):
        SamplingParams(logprobs=-2)
