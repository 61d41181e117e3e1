"""The rows of a step, and which sequence is preempted for them."""

import pytest

from support.engine_driver import Driver
from support.fake_worker import worker_info
from taco_proto.requests import FinishReason


def driver(**changes: object) -> Driver:
    """Eight slots, 64 blocks of 4 tokens, a budget of 16 tokens unless told otherwise."""
    budget = changes.pop("max_num_batched_tokens", 16)
    info = {key: changes.pop(key) for key in tuple(changes) if hasattr(worker_info(), key)}
    result = Driver(worker_info(**info), max_num_batched_tokens=budget, **changes)
    result.attach()
    return result


def test_decodes_come_before_chunks_of_prompts() -> None:
    d = driver(run_ahead=False)
    d.submit(1, [1] * 4, ignore_eos=True)
    d.step()
    d.submit(2, [2] * 40, ignore_eos=True)
    d.step()
    assert d.plans[1].num_tokens.tolist() == [1, 15]
    d.step()
    assert d.plans[2].num_tokens.tolist() == [1, 15]
    d.step()
    assert d.plans[3].num_tokens.tolist() == [1, 10]
    d.run()
    assert len(d.got.tokens[2, 0]) == 8


def test_a_step_holds_no_more_sequences_than_slots() -> None:
    d = driver(max_num_seqs=3)
    for handle in range(10):
        d.submit(handle, [handle + 1], ignore_eos=True)
    d.run()
    assert max(len(plan.slots) for plan in d.plans) == 3
    assert len(d.got.reasons) == 10


def test_a_budget_below_the_number_of_slots_bounds_the_batch() -> None:
    d = driver(max_num_batched_tokens=2)
    for handle in range(5):
        d.submit(handle, [handle + 1] * 5, ignore_eos=True)
    d.run()
    assert max(int(plan.num_tokens.sum()) for plan in d.plans) == 2
    assert len(d.got.reasons) == 5


@pytest.mark.parametrize(
    ("of_scheduler", "of_workers", "expected"),
    [(20, (9, 64), (9, 20)), (64, (16, 5), (16, 5)), (7, (8, 7), (7, 7))],
)
def test_a_steps_budget_is_the_lesser_of_schedulers_and_workers(
    of_scheduler: int, of_workers: tuple[int, int], expected: tuple[int, int]
) -> None:
    d = Driver(max_num_batched_tokens=of_scheduler)
    for number, budget in enumerate(of_workers):
        d.attach(worker_info(name=f"w{number}", max_num_batched_tokens=budget))
    for handle in range(8):
        d.submit(handle, [handle + 1] * 60, max_tokens=2, ignore_eos=True)
    sizes = [0, 0]
    for _ in range(40):
        for number, peer in enumerate(d.peers):
            if d.plan(peer):
                sizes[number] = max(sizes[number], int(d.plans[-1].num_tokens.sum()))
            d.deliver(peer)
    assert tuple(sizes) == expected


def test_lower_priority_values_run_first_then_arrival() -> None:
    d = driver(max_num_seqs=1, run_ahead=False)
    for handle, priority in [(1, 0), (2, 5), (3, -1), (4, 0)]:
        d.submit(handle, [handle], priority=priority, max_tokens=1)
    d.run()
    assert list(d.got.reasons) == [(3, 0), (1, 0), (4, 0), (2, 0)]


def test_the_least_urgent_is_preempted_and_finds_its_blocks_in_the_cache() -> None:
    # Both have five of the ten blocks when the first one, which is about to end, needs another.
    d = driver(num_blocks=10, max_num_batched_tokens=32, run_ahead=False)
    d.submit(1, [1] * 12, priority=1, max_tokens=20, ignore_eos=True)
    d.submit(2, [2] * 12, priority=0, max_tokens=12, ignore_eos=True)
    d.run()
    assert d.engine.counters.num_preemptions == 1
    assert list(d.got.reasons) == [(2, 0), (1, 0)]
    rejoined = [plan.joined for plan in d.plans[1:] if plan.joined is not None]
    assert [joined.num_computed_tokens.tolist() for joined in rejoined] == [[16]]
    assert all(reason is FinishReason.LENGTH for reason in d.got.reasons.values())


def test_of_equal_priority_the_latest_is_preempted() -> None:
    d = driver(num_blocks=12, max_num_batched_tokens=64, run_ahead=False)
    for handle in (1, 2, 3):
        d.submit(handle, [handle] * 9, max_tokens=16, ignore_eos=True)
    d.run()
    assert d.engine.counters.num_preemptions > 0
    assert list(d.got.reasons) == [(1, 0), (2, 0), (3, 0)]


def test_an_admission_leaves_blocks_for_running_sequences() -> None:
    d = driver(num_blocks=6, run_ahead=False)
    d.submit(1, [1] * 8, ignore_eos=True)
    d.submit(2, [2] * 16, ignore_eos=True)
    d.step()
    d.step()
    assert d.engine.num_running == 1, "admitting the second would leave the first nothing"
    d.run()
    assert d.engine.counters.num_preemptions == 0


def test_an_admission_that_fails_evicts_nothing() -> None:
    d = driver(num_blocks=8, run_ahead=False)
    d.submit(1, [1] * 16, max_tokens=1)
    d.run()
    d.submit(2, [2] * 5, ignore_eos=True)
    d.step()
    d.submit(3, [3] * 24, ignore_eos=True)
    d.step()
    assert d.engine.num_running == 1, "six blocks are there, but none would be left to grow into"
    d.engine.cancel(d.client, 3)
    d.submit(4, [1] * 16, max_tokens=1)
    d.run()
    assert d.got.cached[4, 0] == 12


def test_requests_that_arrive_together_share_their_prefix() -> None:
    d = driver(max_num_batched_tokens=100)
    for handle in range(4):
        d.submit(handle, [9] * 12 + [handle + 1], ignore_eos=True)
    d.step()
    assert d.plans[0].num_tokens.tolist() == [13], "the first computes the prefix"
    assert d.plans[1].num_tokens.tolist() == [1, 1, 1, 1], "the others match it at once"
    d.run()
    assert [d.got.cached[handle, 0] for handle in range(4)] == [0, 12, 12, 12]


def test_a_prompt_whose_last_chunk_is_one_token_is_still_a_prompt() -> None:
    d = driver(max_num_batched_tokens=15, run_ahead=False)
    d.submit(1, [9] * 16, n=3, ignore_eos=True)
    d.step()
    d.step()
    d.submit(2, [9] * 16 + [1], max_tokens=1)
    assert [plan.num_tokens.tolist() for plan in d.plans] == [[15], [1]]
    d.step()
    assert sorted(d.plans[2].num_tokens.tolist()) == [1, 1, 4, 4], "siblings and prefix are there"
    d.run()
    assert [d.got.cached[key] for key in [(1, 1), (1, 2), (2, 0)]] == [12, 12, 16]


def test_a_sequence_that_awaits_a_prefix_keeps_its_turn() -> None:
    d = driver(max_num_seqs=2, run_ahead=False, max_num_batched_tokens=64)
    for handle, token in [(1, 9), (2, 9), (3, 8)]:
        d.submit(handle, [token] * 12, max_tokens=4, ignore_eos=True)
    d.run()
    assert list(d.got.reasons) == [(1, 0), (2, 0), (3, 0)]


def test_a_plan_names_a_bounded_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taco_scheduler.core.slot_admission.MAX_JOINED_TOKENS", 30)
    d = driver(max_num_batched_tokens=64, run_ahead=False)
    d.submit(1, [9] * 16, n=6, max_tokens=3, ignore_eos=True)
    d.run()
    joined = [plan.joined.num_tokens.tolist() for plan in d.plans if plan.joined is not None]
    assert joined == [[16], [16, 16], [16, 16], [16]]


def test_short_prompts_that_are_equal_do_not_wait_for_each_other() -> None:
    d = driver()
    for handle in range(4):
        d.submit(handle, [9, 9, 9], ignore_eos=True)
    d.step()
    assert len(d.plans[0].slots) == 4


def test_salts_keep_prefixes_apart() -> None:
    d = driver(run_ahead=False)
    for handle, salt in enumerate(["", "a", "b", "a"]):
        d.submit(handle, [9] * 13, cache_salt=salt, max_tokens=1)
        d.run()
    assert [d.got.cached[handle, 0] for handle in range(4)] == [0, 0, 0, 12]


def test_without_prefix_caching_nothing_is_shared() -> None:
    d = driver(enable_prefix_caching=False)
    for handle in range(3):
        d.submit(handle, [9] * 13, max_tokens=2, ignore_eos=True)
    d.run()
    assert set(d.got.cached.values()) == {0}


def test_only_lookups_count_as_prefix_cache_queries() -> None:
    for caching, expected in [(True, (26, 12)), (False, (0, 0))]:
        d = driver(enable_prefix_caching=caching)
        for handle, prompt_logprobs in enumerate([None, 0, None]):
            d.submit(handle, [9] * 13, max_tokens=1, prompt_logprobs=prompt_logprobs)
            d.run()
        counters = d.engine.counters
        assert (counters.prefix_cache_queries, counters.prefix_cache_hits) == expected


def test_one_long_sequence_may_use_the_whole_pool_and_ends_there() -> None:
    d = driver(num_blocks=3)
    d.submit(1, [1] * 5, max_tokens=100, ignore_eos=True)
    d.run()
    assert d.got.reasons[1, 0] is FinishReason.LENGTH
    assert 5 + len(d.got.tokens[1, 0]) == 3 * 4 + 1, "the last token needs no KV"


def test_an_urgent_arrival_is_tried_though_another_was_refused() -> None:
    d = driver(num_blocks=8, run_ahead=False)
    d.submit(1, [1] * 16, max_tokens=12, ignore_eos=True)
    d.submit(2, [2] * 24, max_tokens=2, ignore_eos=True)
    d.step()
    d.submit(3, [3], priority=-1, max_tokens=1)
    d.step()
    assert (3, 0) in d.got.reasons
    d.run()
    assert len(d.got.reasons) == 3
