"""Admission control: queue limits, rate limits, and the retry time of rejected requests."""

import pytest

from support.engine_driver import Driver
from support.fake_worker import worker_info
from taco_proto.output_batch import output_errors
from taco_proto.requests import LOW_PRIORITY, Tenant
from taco_scheduler.admission.drain_rate import DrainRate
from taco_scheduler.admission.rate_limits import TokenBucket
from taco_scheduler.admission.rejections import RejectionReason
from taco_scheduler.core import router
from taco_scheduler.kv.radix_tree import RadixTree

FLOOD, OTHER = Tenant(name="flood"), Tenant(name="other")


def driver(**config: object) -> Driver:
    """No worker: whatever is let in waits."""
    return Driver(worker_info(num_blocks=256), **config)


def flood(d: Driver, count: int, *, first: int = 0, prompt: int = 4, **fields: object) -> None:
    fields = {"tenant": FLOOD, "max_tokens": 4, "ignore_eos": True, **fields}
    for handle in range(first, first + count):
        d.submit(handle, [handle % 60 + 1] * prompt, **fields)
    d.collect()


def refused(d: Driver) -> list[int]:
    assert all(code == 429 for code, _ in d.got.errors.values())
    return sorted(d.got.errors)


# --------------------------------------------------------------------- bounds


def test_one_tenant_may_fill_the_queue_and_is_then_refused() -> None:
    d = driver(max_waiting_requests=5)
    flood(d, 7)
    assert refused(d) == [5, 6]
    assert "the queue is full: 5 requests with 20 tokens wait" in d.got.errors[5][1]


def test_tokens_are_bounded_too() -> None:
    d = driver(max_waiting_tokens=100)
    flood(d, 3, prompt=40)
    assert refused(d) == [2]
    flood(d, 1, first=10, prompt=20)
    assert refused(d) == [2]


def test_a_prompt_above_the_bound_waits_alone() -> None:
    d = driver(max_waiting_tokens=10)
    flood(d, 2, prompt=40)
    assert refused(d) == [1]


def test_another_tenant_takes_the_place_of_the_latest_of_the_flood() -> None:
    d = driver(max_waiting_requests=8)
    flood(d, 8)
    for handle in range(100, 104):
        d.submit(handle, [handle % 60], tenant=OTHER)
    d.collect()
    assert refused(d) == [4, 5, 6, 7], "the latest of the flood"
    d.submit(104, [1], tenant=OTHER)
    d.collect()
    assert refused(d) == [4, 5, 6, 7, 104], "both have half of it"
    flood(d, 1, first=50)
    assert 50 in refused(d)
    d.attach()
    d.run()
    assert sorted(h for h, _ in d.got.reasons) == [0, 1, 2, 3, 100, 101, 102, 103]


def test_places_are_shared_by_weight() -> None:
    d = driver(max_waiting_requests=8)
    flood(d, 8)
    for handle in range(100, 108):
        d.submit(handle, [1], tenant=Tenant(name="heavy", weight=3.0))
    d.collect()
    assert len([handle for handle in refused(d) if handle < 100]) == 6
    assert refused(d)[-2:] == [106, 107]


def test_large_prompts_are_rejected_by_tokens() -> None:
    d = driver(max_waiting_tokens=100)
    flood(d, 2, prompt=45)
    d.submit(100, [1] * 30, tenant=OTHER)
    d.collect()
    assert refused(d) == [1]
    d.submit(101, [1] * 60, tenant=OTHER)
    d.collect()
    assert refused(d) == [1, 101], "it would have more than the flood"


def test_interactive_work_takes_the_place_of_offline_work() -> None:
    d = driver(max_waiting_requests=3)
    flood(d, 3, priority=LOW_PRIORITY)
    flood(d, 3, first=10)
    assert refused(d) == [0, 1, 2]
    flood(d, 1, first=20, priority=LOW_PRIORITY, tenant=OTHER)
    assert refused(d) == [0, 1, 2, 20], "never the other way round"


def test_a_request_that_has_run_is_not_rejected_when_it_waits_again() -> None:
    d = driver(max_waiting_requests=2)
    d.attach()
    for handle in range(4):
        d.submit(handle, [handle + 1] * 4, tenant=FLOOD, max_tokens=20, ignore_eos=True)
        d.step()
    d.lose_worker()
    assert d.engine._requests.admission.backlogs.num_requests == 4
    flood(d, 1, first=10)
    d.submit(100, [1], tenant=OTHER)
    d.collect()
    assert refused(d) == [10, 100]
    d.attach()
    d.run()
    assert sorted(h for h, _ in d.got.reasons) == [0, 1, 2, 3]
    assert d.engine._requests.admission.backlogs.num_requests == 0
    assert d.engine._requests.admission.backlogs.num_tokens == 0


def test_a_cancelled_request_leaves_its_place() -> None:
    d = driver(max_waiting_requests=2)
    flood(d, 2)
    d.engine.cancel(d.client, 0)
    flood(d, 1, first=5)
    assert refused(d) == []


# ----------------------------------------------------------------- retry after


def retry_after(d: Driver) -> int:
    """What the next request of the flood is told."""
    handle = 10_000 + len(d.got.errors)
    d.submit(handle, [1] * 4, tenant=FLOOD)
    (error,) = output_errors(d.client.take())
    assert error[0] == handle
    _, code, message, retry_after, _ = error
    d.received[d.client].errors[handle] = (code, message)
    return retry_after


def test_retry_after_is_the_backlog_over_the_drain_rate() -> None:
    d = driver(max_num_batched_tokens=8, max_waiting_requests=100, enable_prefix_caching=False)
    d.attach()
    flood(d, 100, prompt=8, max_tokens=1)
    assert retry_after(d) == 0, "nothing is known yet"
    for _ in range(20):
        d.step()  # 10 ms and one prompt each
        d.now += 0.19
    assert d.engine._requests.admission.backlogs.num_requests == 80 - 1
    flood(d, 21, first=200, prompt=8)
    assert retry_after(d) == 20, "800 tokens at 40 a second"


def test_retry_after_uses_the_tenants_part_of_the_drain_rate() -> None:
    d = driver(max_num_batched_tokens=8, max_waiting_requests=60, enable_prefix_caching=False)
    d.attach()
    for handle in range(100, 130):
        d.submit(handle, [handle % 60] * 8, tenant=OTHER, max_tokens=1)
    flood(d, 30, prompt=8, max_tokens=1)
    for _ in range(20):
        d.step()
        d.now += 0.19
    flood(d, 30, first=200, prompt=8)
    admission_queue = d.engine._requests.admission.backlogs
    share = d.engine._requests.admission.fair_share.share_of(FLOOD, 0)
    tokens = admission_queue._backlogs[share].num_tokens
    assert retry_after(d) == pytest.approx(tokens / 20, abs=1.1), "half of 40 a second"


def test_retry_after_is_at_most_a_minute() -> None:
    d = driver(max_waiting_requests=3)
    flood(d, 3)
    for _ in range(20):
        d.now += 1.0
        d.plan()
    assert retry_after(d) == 60


def test_the_drain_rate_fades_and_counts_only_time_with_a_backlog() -> None:
    rate = DrainRate()
    assert rate.tokens_per_second() is None
    now = 0.0
    for _ in range(100):
        rate.tick(now, is_queue_empty=False)
        rate.count(10)
        now += 0.1
    assert rate.tokens_per_second() == pytest.approx(100, rel=0.05)
    rate.tick(now + 1000, is_queue_empty=True)
    assert rate.tokens_per_second() == pytest.approx(100, rel=0.05), "no request waited"
    now += 1000
    for _ in range(100):
        rate.tick(now, is_queue_empty=False)
        rate.count(1)
        now += 0.1
    assert rate.tokens_per_second() == pytest.approx(10, rel=0.1)
    assert len(rate._samples) < 30


# --------------------------------------------------------------------- quotas


def answer(d: Driver, handle: int, tenant: Tenant, prompt: int = 4) -> tuple[int, int] | None:
    """Submits; the code and `retry_after` of the refusal, if it is one."""
    d.submit(handle, [1] * prompt, tenant=tenant, max_tokens=6, ignore_eos=True)
    errors = list(output_errors(d.client.take()))
    return (errors[0][1], errors[0][3]) if errors else None


def test_requests_a_minute() -> None:
    d = driver()
    tenant = Tenant(name="a", max_requests_per_minute=3)
    assert [answer(d, handle, tenant) for handle in range(3)] == [None] * 3
    assert answer(d, 3, tenant) == (429, 20)
    assert answer(d, 4, OTHER) is None
    d.now += 12
    assert answer(d, 5, tenant) == (429, 8), "a refusal costs nothing"
    d.now += 8
    assert answer(d, 6, tenant) is None
    assert answer(d, 7, tenant) == (429, 20)
    d.now += 600
    assert [answer(d, handle, tenant) is None for handle in range(10, 14)] == [True] * 3 + [False]


def test_another_limit_holds_from_the_next_request_on() -> None:
    d = driver()
    assert answer(d, 1, Tenant(name="a", max_requests_per_minute=100)) is None
    small = Tenant(name="a", max_requests_per_minute=1)
    assert answer(d, 2, small) is None
    assert answer(d, 3, small) == (429, 60)
    assert answer(d, 4, Tenant(name="a")) is None


def test_tokens_a_minute_count_prompts_and_outputs() -> None:
    d = driver()
    d.attach()
    tenant = Tenant(name="a", max_tokens_per_minute=60)
    assert answer(d, 1, tenant, prompt=24) is None
    d.run()
    assert len(d.got.tokens[1, 0]) == 6
    start = d.now
    assert answer(d, 2, tenant, prompt=24) is None
    d.run()
    assert d.now - start < 0.5
    # 60 are used, and a token comes back each second.
    assert answer(d, 3, tenant, prompt=20) == (429, 20)
    assert answer(d, 4, tenant, prompt=61) == (429, 0), "no time makes it fit"
    d.now += 21
    assert answer(d, 5, tenant, prompt=20) is None


def test_requests_at_a_time() -> None:
    d = driver()
    tenant = Tenant(name="a", max_concurrent_requests=2)
    assert [answer(d, 1, tenant), answer(d, 2, tenant)] == [None, None]
    assert answer(d, 3, tenant) == (429, 1)
    d.attach()
    d.run()
    assert answer(d, 4, tenant) is None


def test_a_resumed_request_is_not_charged_again() -> None:
    d = driver(max_waiting_requests=1)
    tenant = Tenant(name="a", max_requests_per_minute=1, max_tokens_per_minute=8)
    assert answer(d, 1, tenant) is None
    d.submit(2, [1] * 20, emitted=[5], tenant=tenant)
    d.submit(3, [1] * 20, quota_charged=True, tenant=tenant)
    d.collect()
    assert refused(d) == []


def test_rejections_are_counted_by_reason_and_waiting_tokens_are_shown() -> None:
    d = driver(max_waiting_requests=3)
    tenant = Tenant(name="a", max_requests_per_minute=1, max_tokens_per_minute=10)
    assert answer(d, 1, tenant) is None
    assert answer(d, 2, tenant) == (429, 60)
    assert answer(d, 3, tenant, prompt=11) == (429, 60)
    assert answer(d, 4, Tenant(name="b", max_tokens_per_minute=10), prompt=11) == (429, 0)
    one = Tenant(name="c", max_concurrent_requests=1)
    assert answer(d, 5, one) is None
    assert answer(d, 6, one) == (429, 1)
    assert answer(d, 7, OTHER) is None
    assert answer(d, 8, OTHER, prompt=5) == (429, 0)  # as many as the others have
    assert answer(d, 9, Tenant(name="d", weight=0.0)) == (400, 0)
    lines = d.metrics()
    assert 'taco:waiting_tokens{model_name=""} 12.0' in lines
    counts = {"invalid": 1, "queue_full": 1, "concurrent_requests": 1, "deadline": 0}
    counts |= {"requests_per_minute": 2, "tokens_per_minute": 1, "draining": 0}
    for reason, count in counts.items():
        line = f'taco:rejections_total{{model_name="",reason="{reason}"}} {count}.0'
        assert line in lines
    d.submit(10, [1], tenant=tenant, quota_charged=True, deadline=d.now + 1)
    d.now += 2
    d.engine.expire(d.now)
    assert d.engine.counters.rejections[RejectionReason.DEADLINE] == 1


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_weight_is_a_400(weight: float) -> None:
    d = driver()
    assert answer(d, 1, Tenant(name="a", weight=weight)) == (400, 0)


def test_a_bucket_may_be_in_debt() -> None:
    bucket = TokenBucket()
    bucket.refill(60, 100.0)
    assert bucket.seconds_until(60, 60) == 0
    bucket.take(90)
    assert bucket.seconds_until(10, 60) == 40
    bucket.refill(60, 130.0)
    assert bucket.seconds_until(10, 60) == 10
    bucket.refill(60, 120.0)  # a clock that goes back
    assert bucket.seconds_until(10, 60) == 10


# -------------------------------------------------------------------- routing


@pytest.mark.parametrize(
    ("config", "tenant"),
    [
        ({"max_waiting_requests": 20}, FLOOD),
        ({}, Tenant(name="flood", max_requests_per_minute=20)),
        ({}, Tenant(name="flood", max_tokens_per_minute=20 * 40)),
        ({}, Tenant(name="flood", max_concurrent_requests=20)),
    ],
)
def test_a_rejected_flood_costs_no_routing(
    config: dict[str, int], tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_choices = num_matches = 0
    choose, match = router.choose, RadixTree.match

    def counted_choose(*arguments: object) -> object:
        nonlocal num_choices
        num_choices += 1
        return choose(*arguments)  # type: ignore[arg-type]

    def counted_match(*arguments: object) -> object:
        nonlocal num_matches
        num_matches += 1
        return match(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(router, "choose", counted_choose)
    monkeypatch.setattr(RadixTree, "match", counted_match)
    d = driver(**config)
    d.attach()
    d.attach()
    flood(d, 20, prompt=40, tenant=tenant)
    assert num_choices == 20
    assert num_matches >= 2 * 20
    num_choices = num_matches = 0
    flood(d, 1000, first=20, prompt=40, tenant=tenant)
    assert len(refused(d)) == 1000
    assert num_choices == num_matches == 0


def test_a_request_that_no_replica_can_run_charges_no_rate_limit() -> None:
    d = driver()
    d.attach()
    tenant = Tenant(name="flood", max_requests_per_minute=1)
    d.submit(1, [1] * 4096, tenant=tenant)
    d.submit(2, [1] * 4, tenant=tenant)
    d.run()
    assert d.got.errors[1][0] == 400
    assert list(d.got.reasons) == [(2, 0)]
