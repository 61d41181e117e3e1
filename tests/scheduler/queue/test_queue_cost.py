"""Cost of submitting, planning and rebalancing, independent of waiting requests and tenants."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.engine_driver import Driver, make_request
from support.fake_worker import worker_info
from taco_proto.logprob_limits import MAX_NARROW_LOGPROBS
from taco_proto.requests import LOW_PRIORITY, Tenant
from taco_scheduler.admission.fair_share import BURST_CREDIT, MAX_IDLE_SHARES, FairShare
from taco_scheduler.admission.rate_limits import RateLimits
from taco_scheduler.admission.tenant_backlogs import TenantBacklogs
from taco_scheduler.core.rebalancing import MAX_EXAMINED
from taco_scheduler.queue.waiting_queue import WaitingQueue, _TenantQueue
from taco_scheduler.state.output_buffer import OutputBuffer
from taco_scheduler.state.sequence import Request, new_request

pytestmark = pytest.mark.slow

Tenants = Callable[[int], Tenant]


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a tenant's counter, load or place, or an entry of a queue is looked at."""
    counts: Counter[str] = Counter()

    def count(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def counting(*arguments: Any, **named: Any) -> Any:
            counts[name] += 1
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, counting)

    count(FairShare, "counter")
    count(TenantBacklogs, "load")
    count(_TenantQueue, "key")
    count(WaitingQueue, "pop")
    count(WaitingQueue, "_is_valid")
    return counts


def crowded(num_waiting: int, num_tenants: int, **config: object) -> Driver:
    """Four slots are taken; `num_waiting` requests of `num_tenants` tenants wait."""
    driver = Driver(
        worker_info(num_blocks=256, max_num_seqs=4, eos_token_ids=(), drafts_itself=False),
        **{"max_waiting_requests": 10**6, "max_waiting_tokens": 10**9, **config},
    )
    driver.attach()
    for handle in range(4):
        driver.submit(handle, [1, 2, handle + 3], max_tokens=100, tenant=Tenant(name="running"))
    for _ in range(3):
        driver.step()
    for handle in range(4, 4 + num_waiting):
        tenant = Tenant(name=f"tenant {handle % num_tenants}")
        # Of lower priority: no sequence is preempted for them.
        driver.submit(handle, [1, 2, 3], tenant=tenant, priority=1)
    return driver


def cost_of_a_submit(visits: Counter[str], num_waiting: int, **config: object) -> int:
    driver = crowded(num_waiting, num_waiting, **config)
    visits.clear()
    driver.submit(10**6, [1, 2, 3], tenant=Tenant(name="late", weight=2.0), priority=1)
    return visits.total()


@pytest.mark.slow
def test_a_submit_looks_at_a_few_tenants(visits: Counter[str]) -> None:
    few = cost_of_a_submit(visits, 10)
    assert 0 < cost_of_a_submit(visits, 2000) <= few + 4


def test_a_submit_to_a_full_queue_looks_at_a_few_tenants(visits: Counter[str]) -> None:
    few = cost_of_a_submit(visits, 10, max_waiting_requests=10)
    assert 0 < cost_of_a_submit(visits, 2000, max_waiting_requests=2000) <= few + 4


def cost_of_plans(visits: Counter[str], num_waiting: int) -> int:
    driver = crowded(num_waiting, num_waiting or 1)
    driver.step()
    visits.clear()
    for _ in range(20):
        driver.step()
    assert driver.engine.num_running == 4
    return visits.total()


def test_a_plan_examines_few_waiting_sequences(visits: Counter[str]) -> None:
    assert cost_of_plans(visits, 2000) <= cost_of_plans(visits, 10) + 4


def test_a_plan_examines_few_sequences_that_a_gate_holds(visits: Counter[str]) -> None:
    def cost(num_waiting: int) -> int:
        driver = Driver(
            worker_info(num_blocks=64, max_num_seqs=8, vocab_size=2000, max_logprobs=2000),
            max_waiting_requests=10**6,
            max_waiting_tokens=10**9,
        )
        driver.attach()
        wide = {"logprobs": MAX_NARROW_LOGPROBS + 1, "ignore_eos": True}
        driver.submit(0, [5], max_tokens=60, **wide)
        for handle in range(1, 1 + num_waiting):
            driver.submit(handle, [5], tenant=Tenant(name=str(handle % 5)), max_tokens=1, **wide)
        driver.step()
        visits.clear()
        for _ in range(20):
            driver.step()
        assert driver.engine.num_running == 1
        assert driver.engine.num_waiting == num_waiting
        return visits.total()

    assert cost(2000) <= cost(10) + 4


def test_rebalancing_examines_few_waiting_sequences(visits: Counter[str]) -> None:
    def cost(num_waiting: int) -> int:
        driver = crowded(num_waiting, 3)
        idle = driver.attach()
        driver.engine._rebalancer.search_now()
        visits.clear()
        assert driver.engine.plan(idle.replica, driver.now) is not None, "it took work over"
        return visits.total()

    few = cost(2 * MAX_EXAMINED)
    assert 0 < cost(4000) <= few * 1.2


def test_a_moved_sequence_leaves_its_old_queue() -> None:
    driver = crowded(40, 3)
    busy, idle = driver.peers[0], driver.attach()
    driver.engine.plan(idle.replica, driver.now)
    here, there = busy.replica.waiting, idle.replica.waiting
    assert here.num_sequences + there.num_sequences + idle.replica.num_running == 40
    # Back and forth: what was removed lazily must not come twice.
    moved = [there.pop() for _ in range(there.num_sequences)]
    for sequence in moved:
        assert sequence is not None
        here.push(sequence)
    popped = [here.pop() for _ in range(here.num_sequences)]
    assert len(set(popped)) == len(popped)
    assert None not in popped
    assert here.pop() is None
    assert there.pop() is None
    assert here.num_tokens == there.num_tokens == 0


def test_waiting_sequences_are_counted() -> None:
    driver = crowded(5, 2)
    assert driver.engine.num_waiting == 5
    driver.submit(100, [1, 2, 3], n=3, tenant=Tenant(name="more"), priority=1)
    assert driver.engine.num_waiting == 8
    driver.engine.cancel(driver.client, 100, 1)
    assert driver.engine.num_waiting == 7
    driver.engine.cancel(driver.client, 100)
    assert driver.engine.num_waiting == 5
    driver.run()
    assert driver.engine.num_waiting == 0


# ------------------------------------------------------------- idle tenants


def test_tenants_without_requests_are_forgotten() -> None:
    driver = Driver(worker_info(num_blocks=256, max_num_seqs=4))
    driver.attach()
    for handle in range(3 * MAX_IDLE_SHARES):
        tenant = Tenant(name=f"tenant {handle}", max_requests_per_minute=60 * (handle % 2))
        driver.submit(handle, [1 + handle % 50, 2, 3], max_tokens=2, tenant=tenant)
        if handle % 8 == 7:
            driver.run()
    driver.run()
    admission = driver.engine._requests.admission
    assert admission.fair_share.num_shares < MAX_IDLE_SHARES + 16
    assert not admission.backlogs._backlogs
    assert len(admission.fair_share.num_outputs) <= 64
    driver.now += 120  # the quotas of a minute are full again
    for handle in range(10**6, 10**6 + 2 * MAX_IDLE_SHARES):
        driver.submit(handle, [1], tenant=Tenant(name="last", max_requests_per_minute=10**6))
        driver.engine.cancel(driver.client, handle)
    assert admission._rate_limits.num_tenants <= 1


def test_a_rejected_request_leaves_nothing_behind() -> None:
    driver = crowded(10, 2, max_waiting_requests=10)
    fair_share = driver.engine._requests.fair_share
    before = fair_share.num_shares
    for handle in range(1000, 1200):
        driver.submit(handle, [1] * 200, tenant=Tenant(name=f"too long {handle}"))
    assert len(driver.engine._requests) == 14
    driver.collect()
    assert len(driver.got.errors) == 200
    assert fair_share.num_shares == before


def test_a_tenant_that_is_forgotten_comes_back_as_if_it_were_not() -> None:
    shares = FairShare()
    busy, idle = (shares.share_of(Tenant(name=name), 0) for name in ("busy", "idle"))
    other = shares.share_of(Tenant(name="other"), 0)
    for share in (busy, idle, other):
        shares.enter(share)
    shares.charge_prompt(idle, 5000, 0)
    shares.leave(idle)
    del idle, share
    assert shares.num_shares == 3, "it has had more than the others and is remembered"
    shares.charge_prompt(busy, 20_000, 0)
    shares.charge_prompt(other, 20_000, 0)
    shares.leave(other)
    assert len(shares.shares_of(Tenant(name="idle"))) == 0
    again = shares.share_of(Tenant(name="idle"), 0)
    shares.enter(again)
    assert again.counter == 20_000 - BURST_CREDIT


def test_a_rate_limit_is_not_forgotten_before_its_bucket_is_full() -> None:
    shares = FairShare()
    quotas = RateLimits(shares)
    small = Tenant(name="small", max_tokens_per_minute=60)
    large = Tenant(name="large", max_tokens_per_minute=10**6)

    def spend(tenant: Tenant, now: float, num_tokens: int = 1) -> None:
        quotas.charge(make_request(1, [1] * num_tokens, tenant=tenant), now)

    spend(small, 0.0, 50)
    for _ in range(10):
        spend(large, 1.0)
    assert quotas.num_tenants == 2
    spend(small, 30.0, 35)  # 50 used, 30 have come back
    for _ in range(10):
        spend(large, 80.0)
    assert quotas.num_tenants == 2
    for _ in range(10):
        spend(large, 90.0)
    assert quotas.num_tenants == 1


# -------------------------------------------------------- against plain sorts


@given(seed=st.integers(0, 10**6))
def test_the_largest_backlog_is_the_one_that_a_search_finds(seed: int) -> None:
    draw = random.Random(seed)
    shares, backlogs = FairShare(), TenantBacklogs[Request](1000, 10_000)
    waiting: list[Request] = []
    for arrival in range(60):
        if waiting and draw.random() < 0.4:
            request = waiting.pop(draw.randrange(len(waiting)))
            backlogs.remove(request)
        else:
            tenant = Tenant(name=draw.choice("abcdef"), weight=draw.choice([0.5, 1.0, 3.0]))
            message = make_request(arrival, [1] * draw.randint(1, 9), tenant=tenant)
            priority = draw.choice([0, 0, LOW_PRIORITY])
            share = shares.share_of(tenant, priority)
            request = new_request(OutputBuffer(0), message, share, arrival, 0.0)
            backlogs.add(request)
            waiting.append(request)
        if not waiting:
            continue
        largest = backlogs.largest()
        loads = {s: (s.is_offline, backlogs.load(s)) for s in backlogs._backlogs}
        assert loads[largest] == max(loads.values())
        for kind, counter in backlogs._weights.items():
            known = Counter(p.weight for s, p in backlogs._backlogs.items() if s.is_offline is kind)
            assert counter == known
