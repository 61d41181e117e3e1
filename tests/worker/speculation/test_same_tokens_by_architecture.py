"""Speculation gives the greedy tokens of plain decoding with experts, ALiBi and MLA."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from support.architectures.variants import VARIANTS
from support.drafters import KnowingDrafter
from support.eagle_reference import CONFIGS, HIDDEN, VOCAB, eagle_shapes, vocabulary_maps
from support.engine_driver import make_request
from support.every_draft import verify_every_draft
from support.heads import random_tensors, write_heads
from support.local_engine import Generated, generate, serve
from support.models import kernels_for
from taco_draft.draft_runner import DraftRunner
from taco_proto.config import DrafterConfig, ModelConfig, SpeculationConfig, WorkerConfig
from taco_scheduler.state.speculation_counters import SpeculationCounters
from taco_worker.speculation import speculator_factory
from taco_worker.worker import Worker

# One of each, with hidden states as wide as the heads'.
TARGETS: Mapping[str, Mapping[str, Any]] = {
    "mixtral-8x7b-like": {},
    "bloom-like": {"n_head": 4},
    "deepseek-v3-like": {},
}

PROMPTS = [[5 + i, 9, 17 + 3 * i, *range(30, 30 + 9 * i)] for i in range(4)]
ROUNDS = 2
MAX_TOKENS = 20
CHUNK = 24  # tokens of a step: the longest prompt takes several steps


@dataclass
class Drafting:
    """How a target is helped.

    Attributes:
        speculation: of the worker.
        drafter: the worker's, instead of the one that `speculation` asks for.
        model: of a draft worker.
        num_accepted: drafts that must be accepted at least.
    """

    speculation: SpeculationConfig
    drafter: KnowingDrafter | None = None
    model: Path | None = None
    num_accepted: int = 0


Truth = Mapping[tuple[int, ...], list[list[int]]]
Make = Callable[[Path, Path, Truth], Drafting]


def knowing(*, branches: bool) -> Make:
    """Right and wrong drafts in chains or trees."""

    def make(target: Path, folder: Path, truth: Truth) -> Drafting:
        drafter = KnowingDrafter(truth, branches=branches)
        return Drafting(SpeculationConfig(), drafter, num_accepted=20)

    return make


def lookahead(target: Path, folder: Path, truth: Truth) -> Drafting:
    (folder / "lookahead_cache_config.json").write_text('{"cache_size": 10000}')
    return Drafting(SpeculationConfig(lookahead_config_dir=str(folder)), num_accepted=20)


def draft_model(target: Path, folder: Path, truth: Truth) -> Drafting:
    return Drafting(SpeculationConfig(), model=target, num_accepted=20)


def heads(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> Make:
    """Random heads: their drafts are wrong, and their trees have branches."""

    def make(target: Path, folder: Path, truth: Truth) -> Drafting:
        path = write_heads(folder, config, tensors, "model.safetensors")
        return Drafting(SpeculationConfig(heads=str(path)))

    return make


def eagle3() -> Make:
    """Reads the output of the first layer, the only one that all targets can keep."""
    tensors = random_tensors({**eagle_shapes("eagle3"), "fc.weight": (HIDDEN, HIDDEN)})
    named = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0]}}
    return heads({**CONFIGS["eagle3"], **named}, {**tensors, **vocabulary_maps()})


def medusa() -> Make:
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(3):
        shapes[f"{head}.0.linear.weight"] = (HIDDEN, HIDDEN)
        shapes[f"{head}.0.linear.bias"] = (HIDDEN,)
        shapes[f"{head}.1.weight"] = (VOCAB, HIDDEN)
    return heads({"medusa_num_heads": 3, "medusa_num_layers": 1}, random_tensors(shapes))


DRAFTERS: Mapping[str, Make] = {
    "chains": knowing(branches=False),
    "trees": knowing(branches=True),
    "lookahead": lookahead,
    "draft model": draft_model,
    "medusa": medusa(),
    "eagle": heads(CONFIGS["eagle"], random_tensors(eagle_shapes("eagle"))),
    "eagle3": eagle3(),
}


@dataclass
class Answers:
    """Attributes:
    rounds: of the same requests, one after the other.
    """

    rounds: list[Generated]
    counters: SpeculationCounters = field(default_factory=SpeculationCounters)

    @property
    def tokens(self) -> list[dict[tuple[int, int], list[int]]]:
        return [one.tokens for one in self.rounds]


async def answers(config: WorkerConfig, serves: str, model: Path | None = None) -> Answers:
    """Greedy answers to all prompts, in every round."""
    worker = Worker(config, lambda count: kernels_for(serves, 1))
    async with serve(worker, max_num_batched_tokens=CHUNK) as service:
        if model is not None:
            drafter = DrafterConfig(
                model=ModelConfig(model=str(model), dtype="float32"), num_threads=1, num_blocks=64
            )
            service.attach_local_drafter(DraftRunner(drafter))
        rounds = []
        for number in range(ROUNDS):
            requests = [
                make_request(
                    number * len(PROMPTS) + i,
                    prompt,
                    max_tokens=MAX_TOKENS,
                    ignore_eos=True,
                    temperature=0.0,
                )
                for i, prompt in enumerate(PROMPTS)
            ]
            rounds.append(await generate(service, requests))
            assert not rounds[-1].errors
        return Answers(rounds, service.engine.counters.speculation)


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    variant = VARIANTS[request.param]
    path = tmp_path_factory.mktemp("target")
    return variant.make(path, hidden_size=HIDDEN, **TARGETS[request.param])


@pytest.fixture(scope="module", params=["kernels", "torch"])
def serves(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def config(target: Path) -> WorkerConfig:
    model = ModelConfig(model=str(target), dtype="float32")
    return WorkerConfig(model=model, num_blocks=64, max_num_seqs=8)


@pytest.fixture(scope="module")
def plain(config: WorkerConfig, serves: str) -> Answers:
    return asyncio.run(answers(config, serves))


@pytest.fixture
def _every_draft_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    verify_every_draft(monkeypatch)


@pytest.mark.usefixtures("_every_draft_is_verified")
@pytest.mark.parametrize("kind", DRAFTERS)
async def test_greedy_tokens_are_those_of_plain_decoding(
    kind: str,
    target: Path,
    config: WorkerConfig,
    serves: str,
    plain: Answers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    truth = {tuple(PROMPTS[i]): [tokens] for (i, _), tokens in plain.tokens[0].items()}
    drafting = DRAFTERS[kind](target, tmp_path, truth)
    if drafting.drafter is not None:
        monkeypatch.setattr(speculator_factory, "_make_drafter", lambda *_: drafting.drafter)
    wanted = replace(config, speculation=drafting.speculation)
    drafted = await answers(wanted, serves, drafting.model)
    assert drafted.tokens == plain.tokens
    assert drafted.counters.draft_tokens > 20
    assert drafted.counters.accepted_tokens >= drafting.num_accepted
