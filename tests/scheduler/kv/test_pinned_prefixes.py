"""Pinned prefixes: limits, expiry and eviction."""

import math
from typing import Any

import pytest

from support.engine_driver import Driver
from support.fake_worker import worker_info
from taco_proto.requests import PrefixPin, Tenant

PROMPT_TOKENS = 9  # two full blocks of four, and a token to compute
PIN = PrefixPin(8, 60.0)


def driver(num_host_blocks: int = 0, **config: Any) -> Driver:
    """A device of ten blocks, which four prompts of three blocks do not fit in."""
    info = worker_info(num_blocks=10, num_host_blocks=num_host_blocks)
    d = Driver(info, run_ahead=False, **config)
    d.attach()
    return d


def ask(d: Driver, handle: int, topic: int, *pins: PrefixPin, owner: str = "") -> int:
    """Runs a prompt to its end; returns how many of its tokens were cached."""
    tenant = Tenant(name=owner)
    d.submit(handle, [topic] * PROMPT_TOKENS, max_tokens=1, pins=pins, tenant=tenant)
    d.run()
    return d.got.cached[handle, 0]


def flood(d: Driver) -> None:
    for topic in range(21, 28):
        ask(d, topic, topic)


def is_kept(d: Driver, topic: int) -> bool:
    """After a flood; what it asks may be cached afterwards."""
    return ask(d, 100 + topic, topic) == 8


def metric(d: Driver, name: str) -> float:
    lines = d.metrics()
    (value,) = [line.split()[1] for line in lines if line.startswith(f"{name}{{")]
    return float(value)


def test_a_pinned_prefix_outlives_others() -> None:
    d = driver()
    ask(d, 0, 10, PIN)
    assert metric(d, "taco:worker_pinned_blocks") == 2
    flood(d)
    assert is_kept(d, 10)
    assert not is_kept(d, 21)
    assert metric(d, "taco:prefix_pins_total") == 1
    assert metric(d, "taco:rejected_prefix_pins_total") == 0


def test_a_pin_ends_with_its_time() -> None:
    d = driver()
    ask(d, 0, 10, PIN)
    d.now += 61.0
    flood(d)
    assert not is_kept(d, 10)
    assert metric(d, "taco:worker_pinned_blocks") == 0


def test_a_prefix_that_is_pinned_again_is_kept_longer() -> None:
    d = driver()
    ask(d, 0, 10, PIN)
    d.now += 50.0
    ask(d, 1, 10, PIN)
    d.now += 50.0
    flood(d)
    assert is_kept(d, 10)


def test_no_more_is_pinned_than_was_asked_for() -> None:
    d = driver()
    ask(d, 0, 10, PrefixPin(7, 60.0))
    flood(d)
    assert ask(d, 100, 10) == 4


def test_each_of_two_beginnings_is_kept_for_its_time() -> None:
    d = driver()
    ask(d, 0, 10, PrefixPin(8, 60.0), PrefixPin(4, 600.0))
    d.now += 61.0
    flood(d)
    assert ask(d, 100, 10) == 4


def test_a_pinned_prefix_is_evicted_for_a_sequence() -> None:
    d = driver()
    ask(d, 0, 10, PIN)
    d.submit(1, [11] * 37, max_tokens=3, ignore_eos=True)
    d.run()
    assert len(d.got.tokens[1, 0]) == 3
    assert not is_kept(d, 10)


def test_pins_are_kept_if_giving_them_up_would_not_be_enough() -> None:
    d = driver()
    ask(d, 0, 10, PrefixPin(8, 60.0), PrefixPin(4, 60.0))  # two blocks, one of them pinned twice
    d.submit(1, [11] * 12, max_tokens=12, ignore_eos=True)
    d.step()
    d.submit(2, [12] * 24, max_tokens=1)  # six blocks, and one to spare: six are not in use
    d.step()
    assert metric(d, "taco:worker_pinned_blocks") == 3
    d.run()
    assert len(d.got.tokens) == 3


def test_a_pinned_prefix_that_a_sequence_uses_is_not_evicted() -> None:
    d = driver()
    ask(d, 0, 10, PIN)
    ask(d, 1, 11, PIN)
    d.submit(2, [10] * 9, max_tokens=7, ignore_eos=True)
    d.step()
    d.submit(3, [12] * 21, max_tokens=2, ignore_eos=True)  # six blocks, of which five are free
    d.run()
    flood(d)
    assert [is_kept(d, topic) for topic in (10, 11)] == [True, False]


def test_an_evicted_pinned_prefix_goes_to_the_host() -> None:
    d = driver(num_host_blocks=16, offload_min_accesses=5)
    ask(d, 0, 10, PIN)
    ask(d, 1, 11)
    d.submit(2, [12] * 37, max_tokens=3, ignore_eos=True)
    d.run()
    assert is_kept(d, 10)
    assert not is_kept(d, 11)


def test_the_oldest_pinned_prefix_is_evicted_for_a_new_one() -> None:
    d = driver()
    for topic in (10, 11, 12):  # two blocks each, and at most five in all
        ask(d, topic, topic, PIN)
    flood(d)
    assert [is_kept(d, topic) for topic in (11, 12, 10)] == [True, True, False]


def test_one_of_several_owners_may_pin_half_of_the_limit() -> None:
    d = driver()
    for topic, owner in ((10, "a"), (11, "b"), (12, "a")):
        ask(d, topic, topic, PIN, owner=owner)
    flood(d)
    assert [is_kept(d, topic) for topic in (11, 12, 10)] == [True, True, False]


def test_an_owner_with_few_pins_takes_the_room_of_one_with_many() -> None:
    d = driver(max_pinned_share=0.4)  # four blocks
    one = PrefixPin(4, 60.0)
    for topic, owner in ((10, "a"), (11, "b"), (12, "b"), (13, "c"), (14, "d")):
        ask(d, topic, topic, one, owner=owner)
    flood(d)
    kept = [ask(d, 100 + topic, topic) == 4 for topic in (10, 12, 13, 14, 11)]
    assert kept == [True, True, True, True, False]


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_a_prefix_above_the_limit_is_not_pinned(share: float) -> None:
    d = driver(max_pinned_share=share)
    ask(d, 0, 10, PIN)
    assert metric(d, "taco:rejected_prefix_pins_total") == 1
    flood(d)
    assert not is_kept(d, 10)


def test_a_pin_ends_when_a_failed_step_removes_its_prefix() -> None:
    d = driver()
    d.submit(0, [10] * PROMPT_TOKENS, max_tokens=1, pins=(PIN,))
    d.worker.fails = lambda plan: True
    d.plan()
    d.worker.fails = lambda plan: False
    d.run()
    assert d.engine.num_free_blocks == 10 - 2, "pinned when it was computed in the end"
    d.now += 61.0
    ask(d, 1, topic=11)
    assert d.engine.num_free_blocks == 10


@pytest.mark.parametrize(
    "pins",
    [
        (PrefixPin(0, 60.0),),
        (PrefixPin(PROMPT_TOKENS + 1, 60.0),),
        (PrefixPin(4, 0.0),),
        (PrefixPin(4, math.nan),),
        (PrefixPin(4, 10.0**6),),
        (PIN,) * 5,
    ],
)
def test_an_invalid_pin_is_rejected(pins: tuple[PrefixPin, ...]) -> None:
    d = driver()
    d.submit(0, [10] * PROMPT_TOKENS, pins=pins)
    d.collect()
    assert d.got.errors[0][0] == 400


@pytest.mark.slow
def test_one_prompt_may_evict_all_pinned_prefixes() -> None:
    num_pins = 1100
    info = worker_info(num_blocks=4 * num_pins, max_model_len=5 * 4 * num_pins)
    d = Driver(info, run_ahead=False, max_num_batched_tokens=2**16)
    d.attach()
    for number in range(2 * num_pins):
        owner = f"owner-{number % 4}"
        prompt = [1 + number % 60, 1 + number // 60] * 2
        d.submit(
            number,
            [*prompt, 1],
            max_tokens=1,
            pins=(PrefixPin(4, 60.0),),
            tenant=Tenant(name=owner),
        )
        d.run()
    assert d.peers[0].replica.worker.blocks.num_pinned_blocks > num_pins
    d.submit(5000, [63] * (4 * info.num_blocks - 8), max_tokens=1)
    d.run()
    assert not d.got.errors
    assert (5000, 0) in d.got.reasons
