"""Short prompts behind a long one: the steps that they wait, and the use of the budget."""

import pytest

from support.engine_driver import Driver
from support.fake_worker import worker_info
from taco_proto.config import SchedulerConfig
from taco_proto.errors import ConfigurationError
from taco_proto.steps import StepPlan
from taco_scheduler.core.engine import Engine

LONG = 100_000


def driver(**config: object) -> Driver:
    """A budget of 2,048 tokens a step, unless told otherwise."""
    info = worker_info(
        max_model_len=131_072, block_size=16, num_blocks=20_000, max_num_seqs=64, vocab_size=1000
    )
    result = Driver(info, **{"run_ahead": False, **config})
    result.attach()
    return result


def submit(d: Driver, handle: int, num_tokens: int, **fields: object) -> None:
    d.submit(handle, [handle, *[7] * (num_tokens - 1)], **{"max_tokens": 1, **fields})


def num_steps_until_started(d: Driver, handle: int) -> int:
    """Steps that are planned until `handle` has its first row."""
    for count in range(1, 200):
        assert d.step()
        if (handle, 0) in d.got.tokens:
            return count
    raise AssertionError("it never started")


def test_a_short_prompt_starts_beside_a_long_one_that_runs() -> None:
    d = driver()
    submit(d, 1, LONG)
    d.step()
    submit(d, 2, 64)
    assert num_steps_until_started(d, 2) == 1
    assert d.plans[-1].num_tokens.tolist() == [2048 - 64, 64], "the long one gets the rest"


def test_a_short_prompt_starts_beside_a_long_one_that_came_with_it() -> None:
    d = driver(run_ahead=True)
    submit(d, 1, LONG)
    submit(d, 2, 64)
    assert num_steps_until_started(d, 2) <= 2


def test_a_short_prompt_passes_long_ones_that_wait() -> None:
    d = driver()
    for handle in range(1, 5):
        submit(d, handle, LONG)
    submit(d, 5, 64)
    assert num_steps_until_started(d, 5) == 1


def test_a_long_prompt_alone_gets_the_whole_budget() -> None:
    d = driver()
    submit(d, 1, LONG)
    d.run()
    assert [int(plan.num_tokens.sum()) for plan in d.plans[:-1]] == [2048] * (LONG // 2048)


def test_a_long_prompt_keeps_its_threshold_however_many_short_ones_come() -> None:
    d = driver()
    submit(d, 1, 20_000)
    for handle in range(2, 40):
        submit(d, handle, 400)
    d.step()
    assert d.plans[0].num_tokens.tolist() == [2048 - 3 * 400, 400, 400, 400]
    d.run()
    assert len(d.got.reasons) == 39
    assert all(int(plan.num_tokens.sum()) == 2048 for plan in d.plans[:-1]), "no budget is lost"


def test_long_prompts_of_one_priority_are_computed_one_after_the_other() -> None:
    d = driver()
    for handle in (1, 2, 3):
        submit(d, handle, 10_000)
    d.run()
    assert list(d.got.reasons) == [(1, 0), (2, 0), (3, 0)]
    assert len(d.plans) == -(-30_000 // 2048)


def test_a_short_prompt_of_lower_priority_does_not_slow_a_long_one() -> None:
    d = driver()
    submit(d, 1, 10_000)
    submit(d, 2, 64, priority=1)
    assert num_steps_until_started(d, 2) == -(-10_000 // 2048)


@pytest.mark.parametrize(("threshold", "first"), [(100, 100), (0, 2048), (None, 512)])
def test_the_threshold_is_what_a_cut_prompt_keeps(threshold: int | None, first: int) -> None:
    d = driver(long_prefill_token_threshold=threshold)
    submit(d, 1, LONG)
    for handle in range(2, 60):
        submit(d, handle, 64)
    plan = next_plan(d)
    assert 0 <= int(plan.num_tokens[0]) - first < 64
    assert int(plan.num_tokens.sum()) == 2048


def test_a_negative_threshold_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="long_prefill_token_threshold must be at least 0"):
        Engine(SchedulerConfig(long_prefill_token_threshold=-1))


def next_plan(d: Driver) -> StepPlan:
    assert d.step()
    return d.plans[-1]
