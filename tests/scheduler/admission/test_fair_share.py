"""Fair share between tenants: the order of the queue, preemption, and each tenant's part."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.engine_driver import Driver, make_request
from support.fake_worker import worker_info
from taco_proto.requests import LOW_PRIORITY, FinishReason, Tenant
from taco_scheduler.admission.fair_share import CACHED_COST, OUTPUT_COST, FairShare
from taco_scheduler.queue.waiting_queue import WaitingQueue
from taco_scheduler.state.output_buffer import OutputBuffer
from taco_scheduler.state.sequence import Request, Sequence, Status, new_request


def driver(**changes: object) -> Driver:
    """Four slots, 256 blocks of 4 tokens, a budget of 32 tokens unless told otherwise."""
    info = {key: changes.pop(key) for key in tuple(changes) if hasattr(worker_info(), key)}
    result = Driver(
        worker_info(**{"num_blocks": 256, "max_num_seqs": 4, **info}),
        **{"max_num_batched_tokens": 32, **changes},
    )
    result.attach()
    return result


def submit(d: Driver, handle: int, tenant: str, num_prompt: int = 8, **fields: object) -> None:
    """A prompt that shares nothing with another one's."""
    fields = {"max_tokens": 8, "ignore_eos": True, **fields}
    weight = fields.pop("weight", 1.0)
    assert isinstance(weight, float)
    prompt = [handle % 60 + 1, handle // 60 + 1] * (num_prompt // 2)
    d.submit(handle, prompt, tenant=Tenant(name=tenant, weight=weight), **fields)


# ------------------------------------------------------------------- counters


def test_a_counter_grows_with_served_tokens_over_the_weight() -> None:
    shares = FairShare()
    share = shares.share_of(Tenant(name="a", weight=2.0), priority=0)
    shares.enter(share)
    shares.charge_prompt(share, 100, 60)
    assert share.counter == (40 + CACHED_COST * 60) / 2
    shares.num_outputs[share.index] += 7
    assert share.counter == (40 + CACHED_COST * 60 + 7 * OUTPUT_COST) / 2
    shares.leave(share)
    assert share.counter == (40 + CACHED_COST * 60 + 7 * OUTPUT_COST) / 2
    assert share.num_outputs == 7


def test_another_weight_changes_nothing_of_the_past() -> None:
    shares = FairShare()
    share = shares.share_of(Tenant(name="a"), priority=0)
    shares.enter(share)
    shares.num_outputs[share.index] += 10
    before = share.counter
    assert shares.share_of(Tenant(name="a", weight=4.0), priority=0) is share
    assert share.counter == pytest.approx(before)
    shares.num_outputs[share.index] += 10
    assert share.counter == pytest.approx(before + 10 * OUTPUT_COST / 4)


def test_a_new_tenant_is_lifted_to_the_least_counter_less_a_credit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taco_scheduler.admission.fair_share.BURST_CREDIT", 10.0)
    shares = FairShare()
    a, b, c = (shares.share_of(Tenant(name=name), priority=0) for name in "abc")
    shares.enter(a)
    shares.enter(b)
    shares.charge_prompt(a, 300, 0)
    shares.charge_prompt(b, 200, 0)
    shares.enter(c)
    assert c.counter == 190
    shares.charge_prompt(c, 500, 0)
    shares.leave(c)
    shares.enter(c)
    assert c.counter == 690, "what it had is not forgotten"
    for share in (a, b, c):
        shares.leave(share)
    d = shares.share_of(Tenant(name="d"), priority=0)
    shares.enter(d)
    assert d.counter == 680, "the last one that left"
    shares.enter(a)
    shares.charge_prompt(a, 5000, 0)
    shares.enter(d)
    assert d.counter == a.counter - 10, "not only from idle"


def test_offline_work_has_counters_of_its_own() -> None:
    shares = FairShare()
    offline = shares.share_of(Tenant(name="a"), LOW_PRIORITY)
    online = shares.share_of(Tenant(name="a"), LOW_PRIORITY - 1)
    shares.enter(offline)
    shares.enter(online)
    shares.charge_prompt(online, 100, 0)
    assert offline.counter == 0
    late = shares.share_of(Tenant(name="b"), priority=0)
    shares.enter(late)
    assert late.counter == 0, "within its credit"


def test_counters_of_many_tenants() -> None:
    shares = FairShare()
    all_shares = [shares.share_of(Tenant(name=str(i)), priority=0) for i in range(100)]
    for share in all_shares:
        shares.enter(share)
        shares.charge_prompt(share, share.index, 0)
    assert sorted(share.counter for share in all_shares) == list(range(100))


# ---------------------------------------------------------------------- queue


def waiting_sequence(shares: FairShare, tenant: str, priority: int, arrival: int) -> Sequence:
    message = make_request(arrival, [1, 2], priority=priority, tenant=Tenant(name=tenant))
    share = shares.share_of(message.tenant, priority)
    return new_request(OutputBuffer(0), message, share, arrival, 0.0).sequences[0]


@given(data=st.data())
def test_the_queue_gives_what_a_sort_would(data: st.DataObject) -> None:
    """Pushes, pops, charges and ends in any order, against a list that is sorted each time."""
    shares = FairShare()
    queue = WaitingQueue(shares)
    model: list[Sequence] = []
    out: list[Sequence] = []
    for arrival in range(data.draw(st.integers(1, 60))):
        match data.draw(st.sampled_from(["push", "push", "pop", "charge", "end", "return"])):
            case "push":
                tenant = data.draw(st.sampled_from("abc"))
                priority = data.draw(st.sampled_from([0, 0, 0, -1]))
                model.append(waiting_sequence(shares, tenant, priority, arrival))
                queue.push(model[-1])
            case "pop":
                model.sort(key=_key)
                expected = model.pop(0) if model else None
                assert queue.peek() is expected
                assert queue.pop() is expected
                if expected is not None:
                    expected.status = Status.RUNNING
                    out.append(expected)
            case "charge":
                tenant = data.draw(st.sampled_from("abc"))
                share = shares.share_of(Tenant(name=tenant), priority=0)
                shares.charge_prompt(share, data.draw(st.integers(0, 3)), 0)
            case "end" if model:
                model.pop(data.draw(st.integers(0, len(model) - 1))).status = Status.FINISHED
            case "return" if out:
                model.append(out.pop())
                queue.push(model[-1])
    model.sort(key=_key)
    rest = [queue.pop() for _ in range(len(model) + 1)]
    assert rest == [*model, None]


def _key(sequence: Sequence) -> tuple[int, float, int]:
    request: Request = sequence.request
    return (request.priority, request.share.counter, request.arrival)


def test_the_queue_forgets_what_has_ended() -> None:
    shares = FairShare()
    queue = WaitingQueue(shares)
    kept = waiting_sequence(shares, "kept", 0, 0)
    queue.push(kept)
    for arrival in range(1, 5000):
        sequence = waiting_sequence(shares, f"tenant {arrival}", 0, arrival)
        queue.push(sequence)
        sequence.status = Status.FINISHED
    assert len(queue._tenant_queues) < 300
    assert len(queue._heap) < 300
    assert queue.pop() is kept


# --------------------------------------------------------------------- running


def test_tenants_take_turns_though_one_came_first_with_many() -> None:
    d = driver(max_num_seqs=1, run_ahead=False)
    for handle in range(6):
        submit(d, handle, "flood")
    for handle in range(10, 13):
        submit(d, handle, "other")
    d.run()
    order = [handle for handle, _ in d.got.reasons]
    assert order.index(12) <= 6, order


def tokens_by_tenant(d: Driver) -> dict[int, int]:
    """By the hundreds of the handles."""
    result: dict[int, int] = {}
    for (handle, _), tokens in d.got.tokens.items():
        result[handle // 100] = result.get(handle // 100, 0) + len(tokens)
    return result


def test_output_tokens_are_shared_by_weight() -> None:
    d = driver(max_num_batched_tokens=8, max_num_seqs=2)
    for number in range(60):
        submit(d, number, "a", 2, weight=1.0, max_tokens=12)
        submit(d, 100 + number, "b", 2, weight=3.0, max_tokens=12)
    for _ in range(200):
        d.step()
    tokens = tokens_by_tenant(d)
    assert 2.4 <= tokens[1] / tokens[0] <= 3.6, tokens


def test_a_tenant_with_all_slots_is_preempted_for_one_without() -> None:
    d = driver()
    for handle in range(8):
        submit(d, handle, "flood", max_tokens=100)
    for _ in range(5):
        d.step()
    assert d.engine.num_running == 4
    submit(d, 100, "other")
    for _ in range(3):
        d.step()
    assert d.got.tokens[100, 0], "it runs at once"
    assert d.engine.counters.num_preemptions == 1
    for _ in range(9):
        d.step()
    assert d.got.reasons[100, 0] is FinishReason.LENGTH
    d.run()
    assert len(d.got.reasons) == 9
    assert d.engine.num_free_blocks == d.info.num_blocks


def test_slots_are_given_up_only_until_they_are_even() -> None:
    d = driver()
    for handle in range(8):
        submit(d, handle, "a", max_tokens=60)
    for _ in range(3):
        d.step()
    for handle in range(100, 108):
        submit(d, handle, "b", max_tokens=60)
    for _ in range(20):
        d.step()
    shares = [s.request.tenant.name for s in d.peers[0].replica.worker.batch.running()]
    assert sorted(shares) == ["a", "a", "b", "b"]
    assert d.engine.counters.num_preemptions == 2
    d.run()
    assert len(d.got.reasons) == 16


def test_a_tenant_far_behind_may_exceed_its_share_in_a_burst(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taco_scheduler.core.preemption.FAR_AHEAD", 10.0)
    d = driver()
    for handle in range(8):
        submit(d, handle, "flood", max_tokens=100)
    for _ in range(5):
        d.step()
    for handle in (100, 101, 102):
        submit(d, handle, "other", max_tokens=20)
    for _ in range(8):
        d.step()
    assert all(d.got.tokens.get((handle, 0)) for handle in (100, 101, 102))
    assert d.engine.counters.num_preemptions == 3
    d.run()
    assert len(d.got.reasons) == 11


def test_blocks_are_given_up_too() -> None:
    d = driver(num_blocks=20, max_num_seqs=8, run_ahead=False)
    for handle in range(6):
        submit(d, handle, "flood", 14, max_tokens=30)
    for _ in range(6):
        d.step()
    assert d.engine.num_running < 6, "slots are left, blocks are not"
    before = d.engine.counters.num_preemptions
    submit(d, 100, "other", 14, max_tokens=2)
    for _ in range(5):
        d.step()
    assert d.got.reasons[100, 0] is FinishReason.LENGTH
    assert d.engine.counters.num_preemptions > before
    d.run()
    assert len(d.got.reasons) == 7


def test_an_arrival_runs_before_the_long_prompt_of_a_tenant_ahead() -> None:
    d = driver(max_model_len=512, max_num_batched_tokens=16, run_ahead=False)
    submit(d, 1, "flood", 40, max_tokens=1)
    d.run()
    submit(d, 2, "flood", 400, max_tokens=1)
    submit(d, 100, "other", 8, max_tokens=1)
    for _ in range(4):
        d.step()
    assert (100, 0) in d.got.reasons
    assert (2, 0) not in d.got.reasons
    d.run()
    assert (2, 0) in d.got.reasons


def test_offline_requests_are_preempted_for_a_single_request() -> None:
    d = driver(max_num_seqs=2)
    for handle in range(4):
        submit(d, handle, "", priority=LOW_PRIORITY, max_tokens=50)
    for _ in range(3):
        d.step()
    for handle in (100, 101, 102):
        submit(d, handle, "", max_tokens=4)
    for _ in range(14):
        d.step()
    assert {100, 101, 102} <= {handle for handle, _ in d.got.reasons}
    assert not any(handle < 100 for handle, _ in d.got.reasons)
    d.run()
    assert len(d.got.reasons) == 7


def test_offline_prompts_leave_the_budget_to_others() -> None:
    d = driver(max_model_len=512, max_num_batched_tokens=8, run_ahead=False)
    submit(d, 1, "", 400, priority=LOW_PRIORITY, max_tokens=1)
    d.step()
    submit(d, 2, "", 16, max_tokens=1)
    for _ in range(3):
        d.step()
    assert (2, 0) in d.got.reasons
    d.run()
    assert (1, 0) in d.got.reasons


@pytest.mark.parametrize("seed", range(6))
def test_every_tenant_finishes_with_the_right_tokens(seed: int) -> None:
    """Small pools, so that tenants preempt each other all the time; the fake worker checks every
    plan, and the answers must be those of an undisturbed run.
    """
    rng = random.Random(seed)
    plain = driver(num_blocks=64, max_num_seqs=8)
    fair = driver(num_blocks=rng.choice([10, 14, 20]), max_num_seqs=rng.choice([2, 3, 4]))
    for handle in range(24):
        tenant = rng.choice(["a", "a", "a", "b", "c"])
        fields = {"max_tokens": rng.randint(1, 12), "num_prompt": rng.choice([2, 6, 14])}
        submit(plain, handle, "", **fields)
        priority = rng.choice([0, 0, LOW_PRIORITY])
        submit(fair, handle, tenant, priority=priority, weight=rng.choice([1.0, 2.0]), **fields)
        for _ in range(rng.randint(0, 4)):
            fair.step()
    plain.run()
    fair.run()
    assert fair.got.tokens == plain.got.tokens
    assert fair.engine.num_free_blocks == fair.info.num_blocks
