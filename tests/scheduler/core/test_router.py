"""The replica that a request is assigned to, and rebalancing of waiting requests."""

import pytest

from support.engine_driver import Driver, Peer
from support.fake_worker import generate, worker_info
from taco_proto.requests import FinishReason
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import WorkerInfo

PREFIX = list(range(1, 41))
OTHER = list(range(20, 60))


def make_driver(*infos: WorkerInfo, **config: object) -> Driver:
    driver = Driver(infos[0], **config)
    for info in infos:
        driver.attach(info)
    return driver


@pytest.fixture
def two() -> Driver:
    return make_driver(worker_info(name="a"), worker_info(name="b"), max_num_batched_tokens=64)


def homes(driver: Driver) -> dict[int, str]:
    """By handle, the worker where a request waits or runs."""
    return {r.handle: r.replica.name for r in driver.engine._requests if r.replica is not None}


def num_waiting(peer: Peer) -> int:
    return peer.replica.waiting.num_sequences


def test_idle_replicas_share_new_requests(two: Driver) -> None:
    for handle in range(6):
        two.submit(handle, [handle + 1] * 9)
    assert sorted(homes(two).values()) == ["a"] * 3 + ["b"] * 3
    two.run()
    for handle in range(6):
        expected = generate([handle + 1] * 9, SamplingParams(max_tokens=8), two.info, 1)
        assert two.got.tokens[handle, 0] == expected


def test_a_request_goes_where_its_prefix_is_cached(two: Driver) -> None:
    two.submit(1, PREFIX)
    two.submit(2, OTHER)
    assert homes(two) == {1: "a", 2: "b"}
    two.run()
    two.submit(3, [*OTHER, 9])
    two.submit(4, [*PREFIX, 9])
    assert homes(two) == {3: "b", 4: "a"}
    two.run()
    assert two.got.cached[3, 0] == two.got.cached[4, 0] == 40


def test_simultaneous_requests_share_a_pending_prefix(
    two: Driver,
) -> None:
    for handle, prefix in enumerate([PREFIX, OTHER, PREFIX, OTHER]):
        two.submit(handle, [*prefix, handle + 1])
    placed = homes(two)
    assert placed[0] == placed[2] != placed[1] == placed[3]
    two.run()
    assert two.got.cached[2, 0] == two.got.cached[3, 0] == 40


def test_another_salt_shares_nothing(two: Driver) -> None:
    two.submit(1, PREFIX, cache_salt="mine")
    two.submit(2, PREFIX, cache_salt="yours")
    assert len(set(homes(two).values())) == 2


def test_a_hot_prefix_spreads_when_its_replica_is_behind(two: Driver) -> None:
    two.submit(0, PREFIX, max_tokens=1)
    two.run()
    for handle in range(1, 9):
        two.submit(handle, [*PREFIX, handle], max_tokens=30, ignore_eos=True)
    placed = list(homes(two).values())
    assert placed[0] == "a", "where it is cached, as long as nothing else waits there"
    assert 2 <= placed.count("b") <= 5
    two.run()
    cached = [two.got.cached[handle, 0] for handle in range(1, 9)]
    assert cached.count(0) == 1, "the other replica computes it once"


def test_siblings_stay_together(two: Driver) -> None:
    two.submit(1, PREFIX, n=4, ignore_eos=True)
    two.run()
    assert len(two.plans[0].slots) == 1
    assert two.peers[1].worker.num_sampled_tokens == 0
    assert [two.got.cached[1, index] for index in range(4)] == [0, 36, 36, 36]


def test_requests_go_to_a_replica_that_they_fit() -> None:
    small, large = worker_info(name="small", max_model_len=20), worker_info(name="large")
    d = make_driver(small, large)
    for handle in range(3):
        d.submit(handle, [handle + 1] * 30, max_tokens=4)
    assert set(homes(d).values()) == {"large"}
    d.submit(3, [1] * 200)
    d.collect()
    assert "maximum context length is 128" in d.got.errors[3][1]
    d.run()
    assert d.got.reasons.keys() == {(0, 0), (1, 0), (2, 0)}


def test_an_answer_is_not_cut_short_where_another_replica_would_go_on() -> None:
    small, large = worker_info(name="small", max_model_len=20), worker_info(name="large")
    d = make_driver(small, large)
    d.submit(1, [1] * 10, max_tokens=30, ignore_eos=True)
    d.submit(2, [2] * 10, max_tokens=5, ignore_eos=True)
    assert homes(d) == {1: "large", 2: "small"}
    d.run()
    assert len(d.got.tokens[1, 0]) == 30


def test_a_request_that_only_a_lost_worker_could_run_waits_for_it() -> None:
    small, large = worker_info(name="small", max_model_len=20), worker_info(name="large")
    d = make_driver(small, large)
    d.submit(1, [1] * 30, max_tokens=20, ignore_eos=True)
    d.submit(2, [1] * 30, deadline=d.now + 5)
    d.step()
    d.lose_worker(d.peers[1])
    d.run()
    assert not d.got.errors
    d.now += 10
    d.run()
    assert d.got.errors.keys() == {2}
    assert d.got.errors[2][0] == 504
    d.attach(large)
    d.run()
    sampling = SamplingParams(max_tokens=20, ignore_eos=True)
    assert d.got.tokens[1, 0] == generate([1] * 30, sampling, large, 1)


def test_requests_with_one_key_go_to_one_replica(two: Driver) -> None:
    places = {}
    for handle in range(8):
        two.submit(handle, [handle + 1] * 9, max_tokens=1, prompt_cache_key=f"key-{handle}")
        places[handle] = homes(two)[handle]
        two.run()
    assert set(places.values()) == {"a", "b"}, "keys are spread"
    for handle in range(8):
        prompt = [50 + handle] * 9  # nothing of it is cached
        two.submit(10 + handle, prompt, max_tokens=1, prompt_cache_key=f"key-{handle}")
        assert homes(two)[10 + handle] == places[handle]
        two.run()


def test_a_key_holds_while_its_replica_is_not_far_behind(two: Driver) -> None:
    two.submit(0, [9], max_tokens=1, prompt_cache_key="key")
    for handle in range(1, 4):
        two.submit(handle, [handle] * 60, max_tokens=1, prompt_cache_key="key")
    home, second, third, _ = homes(two).values()
    assert second == home, "without a key it would have gone to the idle one"
    assert third != home, "it was behind by more than the prompt"


def test_a_cache_key_moves_when_its_replica_leaves(two: Driver) -> None:
    two.submit(1, PREFIX, max_tokens=1, prompt_cache_key="key")
    (home,) = homes(two).values()
    two.lose_worker(next(peer for peer in two.peers if peer.replica.name == home))
    for handle in (2, 3):
        two.submit(handle, PREFIX, max_tokens=1, prompt_cache_key="key")
    assert set(homes(two).values()) == {"a", "b"} - {home}
    two.run()
    assert len(two.got.reasons) == 3


# ------------------------------------------------------------ late corrections


def crowd(driver: Driver, count: int) -> None:
    for handle in range(count):
        driver.submit(handle, [handle + 1] * 9, max_tokens=20, ignore_eos=True)


def test_a_new_worker_steals_waiting_requests() -> None:
    d = make_driver(worker_info(name="a", max_num_seqs=2))
    crowd(d, 9)
    d.step()
    running = [r.handle for r in d.engine._requests if r.is_on_worker]
    b = d.attach(worker_info(name="b", max_num_seqs=2))
    d.plan(b)
    placed = homes(d)
    assert [placed[handle] for handle in running] == ["a", "a"], "what runs stays"
    assert list(placed.values()).count("b") >= 4
    d.run()
    assert {len(tokens) for tokens in d.got.tokens.values()} == {20}


def test_a_replica_with_spare_capacity_steals_work() -> None:
    info = worker_info(max_num_seqs=2)
    d = make_driver(info, info)
    crowd(d, 8)
    for handle, home in homes(d).items():
        if home == d.peers[1].replica.name:
            d.engine.cancel(d.client, handle)
    assert num_waiting(d.peers[0]) == 4
    d.plan(d.peers[0])
    assert num_waiting(d.peers[0]) == 2
    d.plan(d.peers[1])
    assert num_waiting(d.peers[0]) < 2
    assert d.peers[1].replica.num_running > 0
    d.run()
    assert sum(reason is FinishReason.LENGTH for reason in d.got.reasons.values()) == 4


def test_work_comes_from_the_busiest_worker_that_has_some() -> None:
    small, large = (
        worker_info(name=name, max_num_seqs=1, max_model_len=length, num_blocks=256)
        for name, length in (("small", 64), ("large", 256))
    )
    d = make_driver(small)
    crowd(d, 12)
    b = d.attach(large)
    for handle in range(100, 140):
        d.submit(handle, [handle - 99] * 9, max_tokens=200, ignore_eos=True)
    assert num_waiting(b) > num_waiting(d.peers[0])
    idle = d.attach(worker_info(name="idle", max_num_seqs=1, max_model_len=64, num_blocks=256))
    d.plan(idle)
    assert idle.replica.num_running == 1, "no request of the busiest worker fits"


def test_a_request_without_gain_stays_with_its_prefix() -> None:
    d = make_driver(worker_info(num_blocks=256), worker_info(num_blocks=256))
    d.submit(0, PREFIX, max_tokens=1)
    d.run()
    d.submit(1, [*PREFIX, 9], max_tokens=1)
    d.plan(d.peers[1])
    assert num_waiting(d.peers[0]) == 1
    assert not d.peers[1].outputs


def test_siblings_of_a_running_sequence_do_not_move() -> None:
    info = worker_info(max_num_seqs=1)
    d = make_driver(info, info)
    d.submit(1, PREFIX, n=3, max_tokens=4, ignore_eos=True)
    while d.peers[0].replica.waiting.num_sequences < 2:
        d.plan()
        d.deliver()
    assert not d.plan(d.peers[1])
    d.run()
    assert [d.got.cached[1, index] for index in range(3)] == [0, 36, 36]


def test_with_one_replica_nothing_is_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    d = make_driver(worker_info(num_blocks=256))
    monkeypatch.delattr("taco_scheduler.kv.block_manager.BlockManager.num_cached_tokens")
    crowd(d, 12)
    d.run()
    assert len(d.got.reasons) == 12
