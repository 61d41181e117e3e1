"""Decode steps without a drafter, or while it is paused, run without the speculator.

The drafter loses no token.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.checkpoints import make_checkpoint
from support.drafters import KnowingDrafter
from support.engine_driver import make_request
from support.every_draft import verify_every_draft
from support.local_engine import generate, serve
from support.models import kernels_for
from support.plans import ints
from support.speculators import make_speculator
from taco_draft.draft_runner import DraftRunner
from taco_proto.config import DrafterConfig, ModelConfig, SpeculationConfig, WorkerConfig
from taco_proto.requests import GenerateRequest
from taco_proto.steps import StepOutput, StepPlan
from taco_worker.execution.decode_steps import DecodeSteps
from taco_worker.speculation import speculator_factory
from taco_worker.speculation.speculator import Speculator
from taco_worker.worker import Worker

PROMPTS = ([5, 9, 17, 30], [6, 9, 20, 31])


class SilentDrafter(KnowingDrafter):
    """Drafts nothing."""

    def __init__(self) -> None:
        super().__init__({}, branches=False)


def rested(speculator: Speculator, *slots: int) -> None:
    speculator.rest(
        StepOutput(epoch=0, step_id=0, slots=ints(slots), token_ids=ints([7] * len(slots))), 0.001
    )


def pause(speculator: Speculator) -> None:
    """Pause for five steps."""
    speculator._pause.record_draft_time(0.001)
    while not speculator._pause.is_paused:
        speculator._pause.record_speedup(0.5, 0.010)


def test_a_paused_drafter_rests_to_the_end_of_the_pause_and_hears_of_tokens() -> None:
    drafter = SilentDrafter()
    drafter._tokens = {1: [3]}
    speculator = make_speculator(drafter)
    speculator._is_followed[1] = True
    assert not speculator.may_rest
    pause(speculator)

    num_steps = 0
    while speculator.may_rest:
        rested(speculator, 0, 1)
        num_steps += 1

    assert num_steps == 4  # 1 ms is 2% of five steps, and the fifth one drafts
    assert drafter._tokens == {1: [3] + [7] * 4}


def test_a_drafter_of_hidden_states_rests_only_without_its_sequences() -> None:
    drafter = SilentDrafter()
    drafter.hidden_layers = ()
    speculator = make_speculator(drafter)
    pause(speculator)
    assert speculator.may_rest
    speculator._is_followed[0] = True
    assert not speculator.may_rest


def test_without_a_drafter_it_rests_and_learns_what_plain_steps_take() -> None:
    speculator = make_speculator()
    assert speculator.may_rest
    rested(speculator, 0, 2, 3)
    assert speculator.may_rest
    assert speculator._selector.step_seconds(3, 1).tolist() == [0.001]


def requests(first_handle: int = 0) -> list[GenerateRequest]:
    return [
        make_request(handle, prompt, max_tokens=60, ignore_eos=True, temperature=0.0)
        for handle, prompt in enumerate(PROMPTS, first_handle)
    ]


def record_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the steps that run without the speculator from now on."""
    run, sizes = DecodeSteps.run, list[int]()

    def recorded(self: DecodeSteps, plan: StepPlan) -> StepOutput | None:
        output = run(self, plan)
        if output is not None:
            sizes.append(output.slots.size)
        return output

    monkeypatch.setattr(DecodeSteps, "run", recorded)
    return sizes


async def test_tokens_with_useless_drafts_are_those_of_plain_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every draft is wrong, so the drafter is paused, tried and paused again."""
    path = make_checkpoint(tmp_path / "model")
    config = WorkerConfig(
        model=ModelConfig(model=str(path), dtype="bfloat16"), num_blocks=64, max_num_seqs=8
    )

    async def answers() -> Any:
        async with serve(Worker(config, lambda count: kernels_for("kernels", 2))) as service:
            return await generate(service, requests())

    expected = await answers()
    wrong = {
        tuple(PROMPTS[handle]): [[(token + 1) % 64 for token in tokens]]
        for (handle, _), tokens in expected.tokens.items()
    }
    drafter = KnowingDrafter(wrong, branches=False)
    monkeypatch.setattr(speculator_factory, "_make_drafter", lambda *arguments: drafter)
    sizes = record_sizes(monkeypatch)
    config = replace(config, speculation=SpeculationConfig())

    got = await answers()

    assert got.tokens == expected.tokens
    assert sizes.count(2) > 10


async def test_a_worker_for_a_draft_worker_rests_while_there_are_no_drafts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify_every_draft(monkeypatch)
    sizes = record_sizes(monkeypatch)
    model = ModelConfig(model=str(make_checkpoint(tmp_path / "model")), dtype="bfloat16")
    config = WorkerConfig(
        model=model, num_blocks=64, max_num_seqs=8, speculation=SpeculationConfig()
    )
    async with serve(Worker(config, lambda count: kernels_for("kernels", 2))) as service:
        plain = await generate(service, requests())
        num_plain = sizes.count(2)
        service.attach_local_drafter(
            DraftRunner(DrafterConfig(model=model, num_threads=1, num_blocks=64))
        )
        drafted = await generate(service, requests(first_handle=2))
        accepted = service.engine.counters.speculation.accepted_tokens
    assert num_plain > 50
    assert accepted > 0
    assert [*plain.tokens.values()] == [drafted.tokens[handle + 2, i] for handle, i in plain.tokens]
