"""While a drafter is paused, decode steps run without the speculator, and it loses no token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.checkpoints import make_checkpoint
from support.drafters import KnowingDrafter
from support.engine_driver import make_request
from support.local_engine import generate, serve
from support.models import kernels_for
from support.plans import ints
from support.speculators import make_speculator
from taco_proto.config import ModelConfig, SpeculationConfig, WorkerConfig
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
        StepOutput(epoch=0, step_id=0, slots=ints(slots), token_ids=ints([7] * len(slots)))
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


def requests() -> list[GenerateRequest]:
    return [
        make_request(handle, prompt, max_tokens=60, ignore_eos=True, temperature=0.0)
        for handle, prompt in enumerate(PROMPTS)
    ]


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
    run, sizes = DecodeSteps.run, list[int]()

    def counted(self: DecodeSteps, plan: StepPlan) -> StepOutput | None:
        output = run(self, plan)
        if output is not None:
            sizes.append(output.slots.size)
        return output

    monkeypatch.setattr(DecodeSteps, "run", counted)
    config = replace(config, speculation=SpeculationConfig())

    got = await answers()

    assert got.tokens == expected.tokens
    assert sizes.count(2) > 10
