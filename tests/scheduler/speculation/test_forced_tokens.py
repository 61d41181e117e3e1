"""Sequences with a grammar get room for the tokens that it may force; others get none for it."""

from typing import Any

import numpy as np
import pytest

from support.engine_driver import Driver
from support.fake_worker import worker_info
from taco_proto.grammars import Grammar
from taco_scheduler.admission.validation import InvalidWorkerError

GRAMMAR = Grammar.of('start: "a"')
PROMPT = [5, 6, 7]


def driver(*, max_draft_tokens: int = 0, max_forced_tokens: int = 6, **config: Any) -> Driver:
    info = worker_info(
        eos_token_ids=(),
        max_draft_tokens=max_draft_tokens,
        drafts_itself=max_draft_tokens > 0,
        max_forced_tokens=max_forced_tokens,
    )
    made = Driver(info, **config)
    made.attach()
    return made


def submit(made: Driver, *grammars: Grammar | None, **fields: Any) -> None:
    for handle, grammar in enumerate(grammars):
        made.submit(handle, PROMPT, grammar=grammar, **{"max_tokens": 40, **fields})
    made.compile_grammars()


def max_drafts(made: Driver) -> list[int]:
    """Of the next plan, which decodes all sequences."""
    assert made.plan()
    plan = made.plans[-1]
    assert plan.num_tokens.tolist() == [1] * plan.slots.size
    return plan.max_drafts.tolist() if plan.max_drafts.size else [0] * plan.slots.size


def started(made: Driver) -> Driver:
    """Prompts have run."""
    assert made.step()
    while made.deliver():
        pass
    return made


def test_only_sequences_with_a_grammar_get_room() -> None:
    made = driver()
    submit(made, GRAMMAR, None, GRAMMAR)
    found = max_drafts(started(made))
    assert sorted(found) == [0, 6, 6]
    made.run()
    assert made.worker.num_forced_tokens > 0
    assert made.engine.counters.speculation.accepted_tokens == made.worker.num_forced_tokens


def test_without_grammars_a_plan_says_nothing_of_drafts() -> None:
    made = driver()
    submit(made, None, None)
    made.run()
    assert not any(plan.max_drafts.size for plan in made.plans)


@pytest.mark.parametrize(("max_draft_tokens", "forced", "expected"), [(4, 6, 6), (8, 6, 8)])
def test_beside_a_drafter_the_larger_number_counts(
    max_draft_tokens: int, forced: int, expected: int
) -> None:
    made = driver(max_draft_tokens=max_draft_tokens, max_forced_tokens=forced)
    submit(made, GRAMMAR, None)
    assert sorted(max_drafts(started(made))) == sorted([expected, max_draft_tokens])


def test_a_worker_that_drafts_no_forced_tokens_gets_none() -> None:
    made = driver(max_forced_tokens=0)
    submit(made, GRAMMAR)
    made.run()
    assert not any(plan.max_drafts.size for plan in made.plans)


def test_room_ends_with_the_sequence() -> None:
    made = driver(run_ahead=False)
    submit(made, GRAMMAR, max_tokens=4)
    assert max_drafts(started(made)) == [2], "two tokens and the one behind them are left"


def test_limits_of_the_operator_count() -> None:
    made = driver(speculative_disable_by_batch_size=1)
    submit(made, GRAMMAR, GRAMMAR)
    made.run()
    assert not any(plan.max_drafts.size for plan in made.plans)
    made = driver(speculative_max_model_len=len(PROMPT))
    submit(made, GRAMMAR)
    made.run()
    assert not any(np.any(plan.max_drafts) for plan in made.plans)


def test_a_worker_with_an_absurd_number_is_rejected() -> None:
    with pytest.raises(InvalidWorkerError, match="max_forced_tokens must be between 0 and 32"):
        driver(max_forced_tokens=33)
