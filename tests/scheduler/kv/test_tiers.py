"""The host tier with whole requests; the fake worker checks that every block has its tokens."""

import logging

import pytest

from support.engine_driver import Driver
from support.fake_worker import worker_info

PROMPT_TOKENS = 9  # two full blocks of four, and a token to compute


def driver(**config: object) -> Driver:
    """A device of ten blocks, which four prompts of three blocks do not fit in."""
    d = Driver(worker_info(num_blocks=10, num_host_blocks=16), run_ahead=False, **config)
    d.attach()
    return d


def ask(d: Driver, handle: int, topic: int) -> int:
    """Runs a prompt to its end; returns how many of its tokens were cached."""
    d.submit(handle, [topic] * PROMPT_TOKENS, max_tokens=1)
    d.run()
    return d.got.cached[handle, 0]


def test_evicted_blocks_are_loaded_from_the_host() -> None:
    d = driver()
    topics = list(range(10, 18))
    assert [ask(d, handle, topic) for handle, topic in enumerate(topics)] == [0] * 8
    assert [ask(d, handle, topic) for handle, topic in enumerate(topics, 10)] == [8] * 8
    tiers = d.peers[0].worker.tiers
    assert tiers.num_offloaded >= 6
    assert tiers.num_loaded >= 6


def test_without_a_host_tier_it_is_computed_again() -> None:
    d = Driver(worker_info(num_blocks=10), run_ahead=False)
    d.attach()
    topics = list(range(10, 18))
    for handles in (range(8), range(10, 18)):
        assert [ask(d, handle, t) for handle, t in zip(handles, topics, strict=True)] == [0] * 8


def test_a_load_that_fails_is_a_miss() -> None:
    d = driver()
    for handle, topic in enumerate(range(10, 18)):
        ask(d, handle, topic)
    worker = d.peers[0].worker
    worker.fails = lambda plan: plan.copies is not None and plan.copies.load_sources.size > 0
    assert ask(d, 100, topic=10) == 8, "that is what the request was told at first"
    assert d.engine.counters.num_failed_steps == 1
    assert ask(d, 101, topic=10) == 8, "it was computed"
    assert d.engine.counters.num_failed_steps == 1


def test_a_lost_worker_takes_its_host_tier_along() -> None:
    d = driver()
    for handle, topic in enumerate(range(10, 18)):
        ask(d, handle, topic)
    d.lose_worker()
    d.attach()
    assert [ask(d, 100 + topic, topic) for topic in range(10, 18)] == [0] * 8


def test_blocks_with_too_few_uses_are_not_offloaded() -> None:
    d = driver(offload_min_accesses=2)
    ask(d, 0, topic=10)
    ask(d, 1, topic=10)
    for topic in range(11, 18):
        ask(d, topic, topic)
    assert ask(d, 100, topic=10) == 8
    assert ask(d, 101, topic=11) == 0


def test_the_device_keeps_no_more_than_it_may() -> None:
    d = driver(max_cached_device_blocks=2)
    for topic in (10, 11, 12):
        ask(d, topic, topic)
    assert ask(d, 100, topic=10) == 8
    assert d.peers[0].worker.tiers.num_loaded == 2, "no room was needed, and yet it had left"


def test_hits_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    d = driver(log_hit_counts=True)
    with caplog.at_level(logging.INFO, "taco.scheduler"):
        for handle in range(34):
            ask(d, handle, topic=10 + handle % 8)
    lines = [r.message for r in caplog.records if "HIT CNT" in r.message]
    assert lines == ["[HIT CNT] total: 102, gpu: 0 (0.00%) cpu: 52 (50.98%) not hit: 50 (49.02%)"]


def test_usage_of_the_host_tier_is_a_metric() -> None:
    d = driver()
    for handle, topic in enumerate(range(10, 18)):
        ask(d, handle, topic)
    used = d.peers[0].worker.tiers.num_offloaded
    expected = f'vllm:cpu_cache_usage_perc{{model_name="fake-model"}} {used / 16}'
    assert expected in d.metrics()
