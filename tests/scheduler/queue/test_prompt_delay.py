"""Prompts that wait so that one step computes several of them."""

from support.engine_driver import Driver
from support.fake_worker import worker_info

STEP_SECONDS = 1.0


def driver(factor: float) -> Driver:
    """With a sequence that is answered, and whose prompt has taken a second."""
    d = Driver(worker_info(), run_ahead=False, prompt_delay_factor=factor)
    d.attach()
    d.submit(0, [9] * 9, max_tokens=60, ignore_eos=True)
    step(d)
    return d


def step(d: Driver, seconds: float = STEP_SECONDS) -> int:
    """Runs a step that takes `seconds`; returns how many sequences it started."""
    assert d.plan()
    d.now += seconds
    d.deliver()
    d.collect()
    joined = d.plans[-1].joined
    return 0 if joined is None else len(joined.slots)


def test_prompts_wait_for_others_and_run_together() -> None:
    d = driver(2.0)
    d.submit(1, [1] * 9)
    assert step(d) == 0
    d.submit(2, [2] * 9)
    assert step(d) == 0
    assert step(d) == 2, "the first one has waited for twice a second"
    d.run()
    assert len(d.got.reasons) == 3


def test_without_a_factor_no_prompt_waits() -> None:
    d = driver(0.0)
    d.submit(1, [1] * 9)
    assert step(d) == 1


def test_no_prompt_waits_while_none_runs() -> None:
    d = driver(1000.0)
    d.engine.cancel(d.client, 0)
    d.submit(1, [1] * 9)
    assert step(d) == 1


def test_only_steps_with_prompts_count() -> None:
    d = driver(2.0)
    step(d, seconds=50.0)
    d.submit(1, [1] * 9)
    assert step(d) == 0
    assert step(d) == 0
    assert step(d) == 1


def test_a_later_arrival_of_higher_rank_does_not_restart_the_delay() -> None:
    d = driver(2.0)
    d.submit(1, [1] * 9)
    assert step(d) == 0
    assert step(d) == 0
    d.submit(2, [2] * 9, priority=-1)
    assert step(d) == 2


def test_a_delayed_sequence_takes_no_slot() -> None:
    """No sequence is preempted for a delayed prompt."""
    d = Driver(worker_info(max_num_seqs=1), run_ahead=False, prompt_delay_factor=2.0)
    d.attach()
    d.submit(0, [9] * 9, max_tokens=60, ignore_eos=True, priority=1_000_000)
    step(d)
    d.submit(1, [1] * 9)
    assert step(d) == step(d) == 0
    assert d.engine.counters.num_preemptions == 0
    assert step(d) == 1
    assert d.engine.counters.num_preemptions == 1
