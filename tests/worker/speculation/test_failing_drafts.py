"""A request ends as in plain decoding, with a text or an error, where a draft of it would fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.checkpoint_tokenizer import trained_tokenizer
from support.checkpoints import make_checkpoint
from support.drafters import MAX_DEPTH, KnowingDrafter
from support.engine_driver import make_request
from support.every_draft import verify_every_draft
from support.local_engine import Generated, generate, serve
from support.logits_processors import Raises
from support.models import kernels_for
from taco_proto.config import ModelConfig, SpeculationConfig, WorkerConfig
from taco_proto.grammars import Grammar
from taco_worker.speculation import speculator_factory
from taco_worker.worker import Worker

Fields = dict[str, Any]

# Of answers with a stop token: a draft of the second step.
NUM_TOKENS = 1 + MAX_DEPTH
# Without repetition nothing follows the fifth token. Each of these characters is a token.
PERMUTED = Grammar.of("start: /[*+=%#]{9}/")
# Behind "^" no text can end. The model prefers "#".
DEAD_END = Grammar.of('start: "a" rest\nrest: "#" /[*+]{6}/ | "^" /[=%]{3}/ end\nend: /[^\\s\\S]/')
DEAD_END_TEXT = "a^=%="


class ChainDrafter(KnowingDrafter):
    """Drafts the tokens of one answer to each prompt, and nothing else."""

    def __init__(self, answers: Mapping[tuple[int, ...], list[int]]) -> None:
        super().__init__({prompt: [tokens] for prompt, tokens in answers.items()}, branches=False)
        self.num_drafts = dict.fromkeys(answers, 0)

    def _tree(self, slot: int, budget: int) -> list[tuple[int, int]]:
        chain = self._rest(slot)[: min(MAX_DEPTH, budget)]
        self.num_drafts[self._prompts[slot]] += len(chain)
        return [(token_id, index - 1) for index, token_id in enumerate(chain)]


def prompt_of(handle: int) -> tuple[int, ...]:
    return 40 + handle, 39, 50, 60


def ending_requests() -> list[Fields]:
    """Of these the first tokens are found before, and the last of them becomes the stop token."""
    sampled = {"ignore_eos": True, "temperature": 0.9, "seed": 3}
    permuted = {"grammar": PERMUTED, "no_repeat_ngram_size": 1}
    return [sampled, sampled, sampled | permuted, {**permuted, "temperature": 0.0}]


def grammar_requests() -> list[Fields]:
    """Every third goes to the dead end."""
    (dead,) = tokens_of("^")
    return [
        {"temperature": temperature, "seed": 3, "grammar": DEAD_END, **fields}
        for temperature in (0.0, 0.9)
        for fields in ({}, {"logit_bias": {dead: -9.0}, "logprobs": 1}, {"logit_bias": {dead: 9.0}})
    ]


def tokens_of(text: str) -> list[int]:
    tokenizer = trained_tokenizer()
    return [token_id for letter in text for token_id in tokenizer.encode(letter).ids]


async def answers(
    config: WorkerConfig, serves: str, requests: Mapping[int, Fields], **fields: Any
) -> Generated:
    worker = Worker(config, lambda count: kernels_for(serves, 2))
    async with serve(worker) as service:
        return await generate(
            service,
            [make_request(i, [*prompt_of(i)], **own, **fields) for i, own in requests.items()],
        )


async def check(
    config: WorkerConfig,
    serves: str,
    requests: Mapping[int, Fields],
    drafts: Mapping[int, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> Generated:
    """Compare answers with and without drafts. Returns those without."""
    plain = await answers(config, serves, requests)
    drafter = ChainDrafter({prompt_of(handle): tokens for handle, tokens in drafts.items()})
    verify_every_draft(monkeypatch)
    monkeypatch.setattr(speculator_factory, "_make_drafter", lambda *arguments: drafter)
    got = await answers(replace(config, speculation=SpeculationConfig()), serves, requests)
    assert got.errors == plain.errors
    assert got.reasons_of_errors == plain.reasons_of_errors
    assert got.reasons == plain.reasons
    for handle, index in plain.reasons:
        assert got.tokens[handle, index] == plain.tokens[handle, index]
    assert min(drafter.num_drafts.values()) > 1
    return plain


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture
def config(checkpoint: Path) -> WorkerConfig:
    return WorkerConfig(
        model=ModelConfig(model=str(checkpoint), dtype="float32"),
        num_blocks=64,
        max_num_seqs=16,
        max_forced_tokens=0,
    )


@pytest.mark.parametrize("serves", ["kernels", "torch"])
async def test_behind_the_end_of_a_sequence_nothing_fails_it(
    config: WorkerConfig, serves: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = dict(enumerate(ending_requests()))
    found = await answers(config, serves, requests, max_tokens=NUM_TOKENS)
    texts = {handle: found.tokens[handle, 0] for handle in requests}
    for handle, tokens in texts.items():
        assert len(set(tokens)) == NUM_TOKENS
        requests[handle] = {**requests[handle], "stop_token_ids": tokens[-1:]}
    requests[0]["logits_processors"] = [Raises(token_id=texts[0][-1])]
    requests[1]["logits_processors"] = [Raises(token_id=texts[1][-2])]
    # A grammar's text ends with the model's end token, also if that is to be ignored.
    whole = {
        "temperature": 0.0,
        "ignore_eos": True,
        "no_repeat_ngram_size": 1,
        "grammar": Grammar.of('start: "ab"'),
    }
    requests[4] = whole
    texts[4] = (await answers(config, serves, {4: whole})).tokens[4, 0]
    plain = await check(config, serves, requests, texts, monkeypatch)
    assert plain.reasons_of_errors == {1: "processor_failed"}


@pytest.mark.parametrize("serves", ["kernels", "torch"])
async def test_a_dead_end_fails_a_request_if_the_model_goes_there(
    config: WorkerConfig, serves: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = dict(enumerate(grammar_requests()))
    found = await answers(config, serves, requests)
    dead = {handle for handle in requests if handle % 3 == 2}
    drafts = {
        handle: found.tokens[handle, 0] if handle in dead else tokens_of(DEAD_END_TEXT)
        for handle in requests
    }
    plain = await check(config, serves, requests, drafts, monkeypatch)
    assert plain.reasons_of_errors == dict.fromkeys(dead, "no_allowed_token")
