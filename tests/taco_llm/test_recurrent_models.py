"""Models with recurrent states, from `LLM` and over HTTP to the tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
import transformers

from support.checkpoints import make_checkpoint
from support.recurrent_models import RECURRENT
from support.serving import Serving
from taco_llm import LLM, BeamSearchParams, SamplingParams
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.replica_args import ReplicaArgs
from taco_llm.outputs import RequestOutput
from taco_llm.supervisor.preflight import check_before_start
from taco_proto.errors import ConfigurationError

NUM_TOKENS = 40
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
RANDOM = random.Random(0)
SHARED = RANDOM.choices(range(3, 380), k=70)
PROMPTS = [SHARED[:60] + RANDOM.choices(range(3, 380), k=size) for size in (1, 9, 40, 120)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("recurrent"), **RECURRENT)


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list[list[int]]:
    """The greedy tokens of transformers."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    found = []
    for prompt in PROMPTS:
        ids = model.generate(
            torch.tensor([prompt]), max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None
        )
        found.append(ids[0, len(prompt) :].tolist())
    return found


@pytest.fixture(scope="module")
def llm(checkpoint: Path) -> Iterator[LLM]:
    with LLM(str(checkpoint), dtype="float32") as llm:
        yield llm


def generate(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> list[RequestOutput]:
    inputs: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
    return llm.generate(inputs, params, use_tqdm=False)


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_tokens_are_those_of_transformers(llm: LLM, expected: list[list[int]]) -> None:
    assert tokens_of(generate(llm, PROMPTS, GREEDY)) == expected


def test_prompts_continue_from_states_of_the_prefix_cache(
    checkpoint: Path, expected: list[list[int]]
) -> None:
    with LLM(str(checkpoint), dtype="float32") as llm:
        one_by_one = [generate(llm, [prompt], GREEDY)[0] for prompt in PROMPTS]
        again = generate(llm, PROMPTS, GREEDY)
        # The next turn of a chat: the prompt, the answer, and a new message.
        turn = [*PROMPTS[0], *expected[0], *range(20, 40)]
        (next_turn,) = generate(llm, [turn], GREEDY)
        (recomputed,) = generate(llm, [turn], GREEDY.with_updates(prompt_logprobs=0))
    assert tokens_of(one_by_one) == tokens_of(again) == expected
    # The first saves no state in the middle of its prompt; the second one does where they part.
    assert [output.num_cached_tokens for output in one_by_one] == [0, 48, 48, 48]
    assert all(
        output.num_cached_tokens >= len(prompt) - 16
        for output, prompt in zip(again, PROMPTS, strict=True)
    )
    assert next_turn.num_cached_tokens >= len(PROMPTS[0]) - 16
    assert tokens_of([next_turn]) == tokens_of([recomputed])


def test_sequences_that_lack_blocks_are_computed_again(
    checkpoint: Path, expected: list[list[int]]
) -> None:
    """Preemption: together the prompts and answers need more blocks than there are."""
    with LLM(str(checkpoint), dtype="float32", num_gpu_blocks_override=20) as llm:
        assert tokens_of(generate(llm, PROMPTS, GREEDY)) == expected


def test_several_answers_and_beams(llm: LLM, expected: list[list[int]]) -> None:
    sampled = SamplingParams(n=3, temperature=0.8, seed=3, max_tokens=12, ignore_eos=True)
    first, second = (generate(llm, [PROMPTS[1]], sampled)[0] for _ in range(2))
    assert [one.token_ids for one in first.outputs] == [one.token_ids for one in second.outputs]
    assert len({tuple(one.token_ids) for one in first.outputs}) > 1
    prompts: Any = [{"prompt_token_ids": PROMPTS[1]}]
    beams = llm.beam_search(prompts, BeamSearchParams(beam_width=1, max_tokens=20, ignore_eos=True))
    assert list(beams[0].sequences[0].tokens)[-20:] == expected[1][:20]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {
                "speculative_model": "[ngram]",
                "num_speculative_tokens": 2,
                "ngram_prompt_lookup_max": 2,
            },
            "speculation",
        ),
        ({"enable_prefix_cache_offload": True}, "KV tiers"),
    ],
)
def test_what_states_exclude_is_rejected_before_the_start(
    checkpoint: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"recurrent states: .*{message}"):
        check_before_start(EngineArgs(model=str(checkpoint), **options), ReplicaArgs())


def test_a_recurrent_model_cannot_draft(checkpoint: Path, tmp_path: Path) -> None:
    target = make_checkpoint(tmp_path / "target")
    args = EngineArgs(
        model=str(target), speculative_model=str(checkpoint), num_speculative_tokens=2
    )
    with pytest.raises(ConfigurationError, match="it cannot draft"):
        check_before_start(args, ReplicaArgs())


def test_over_http(tmp_path: Path, checkpoint: Path, expected: list[list[int]]) -> None:
    with Serving(tmp_path, checkpoint, "--dtype", "float32") as running:
        running.wait_ready()
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none")
        for cached in (0, 48):
            answer = client.completions.create(
                model=str(checkpoint),
                prompt=PROMPTS[0],
                max_tokens=NUM_TOKENS,
                temperature=0,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            )
            assert answer.usage is not None
            details = answer.usage.prompt_tokens_details
            assert (0 if details is None else details.cached_tokens or 0) == cached
            assert answer.choices[0].model_dump()["token_ids"] == expected[0]
