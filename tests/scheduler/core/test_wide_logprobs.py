"""Requests for the log probabilities of large parts of the vocabulary run one after the other."""

import pytest

from support.engine_driver import Driver
from support.fake_worker import worker_info
from taco_proto.logprob_limits import MAX_NARROW_LOGPROBS, MAX_WIDE_ENTRIES

INFO = worker_info(vocab_size=20_000, max_logprobs=20_000)
WIDE = MAX_NARROW_LOGPROBS + 1


def running(d: Driver) -> set[str]:
    owners = d.peers[0].replica.worker.batch.sequences
    return {owner.request.request_id for owner in owners if owner is not None}


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_one_wide_request_runs_at_a_time(field: str) -> None:
    d = Driver(INFO)
    d.attach()
    for handle in range(3):
        d.submit(handle, [5, 6, 7 + handle], max_tokens=3, ignore_eos=True, n=2, **{field: WIDE})
    d.submit(3, [5, 6, 7], max_tokens=20, ignore_eos=True, **{field: WIDE - 1})
    seen: list[set[str]] = []
    while d.step():
        seen.append(running(d))
    wide = [names - {"request-3"} for names in seen]
    assert all(len(names) <= 1 for names in wide)
    assert set().union(*wide) == {"request-0", "request-1", "request-2"}
    assert any("request-3" in names and len(names) > 1 for names in seen)
    assert {key: len(tokens) for key, tokens in d.got.tokens.items()} == {
        **{(handle, index): 3 for handle in range(3) for index in range(2)},
        (3, 0): 20,
    }


def test_a_cancelled_wide_request_lets_the_next_one_run() -> None:
    d = Driver(INFO)
    d.attach()
    d.submit(0, [5], max_tokens=100, ignore_eos=True, logprobs=WIDE)
    d.submit(1, [6], max_tokens=2, ignore_eos=True, logprobs=WIDE)
    for _ in range(5):
        d.step()
    assert not d.got.tokens.get((1, 0))
    d.engine.cancel(d.client, 0)
    d.run()
    assert len(d.got.tokens[1, 0]) == 2


def test_a_wide_request_that_finds_no_blocks_holds_none_up() -> None:
    d = Driver(worker_info(vocab_size=20_000, max_logprobs=20_000, num_blocks=8))
    d.attach()
    d.submit(0, [1] * 17, max_tokens=8, ignore_eos=True)
    d.step()
    d.submit(1, [2] * 25, max_tokens=1, logprobs=WIDE)
    d.step()
    assert running(d) == {"request-0"}, "too few blocks are left"
    d.submit(2, [3] * 2, max_tokens=1, logprobs=WIDE, priority=-1)
    d.step()
    assert "request-2" in running(d)
    d.run()
    assert set(d.got.tokens) == {(0, 0), (1, 0), (2, 0)}


def test_a_wide_request_without_a_worker_holds_none_up() -> None:
    d = Driver(INFO)
    large = d.attach(worker_info(vocab_size=20_000, max_logprobs=20_000, num_blocks=64))
    small = d.attach(worker_info(vocab_size=20_000, max_logprobs=20_000, num_blocks=8))
    d.submit(0, [1] * 40, max_tokens=20, ignore_eos=True, logprobs=WIDE)
    for _ in range(3):
        d.step()
    assert large.replica.num_running == 1
    d.lose_worker(large)
    d.submit(1, [2] * 3, max_tokens=2, ignore_eos=True, logprobs=WIDE)
    d.run()
    assert small.replica.num_running == 0
    assert len(d.got.tokens[1, 0]) == 2


def test_too_many_entries_are_rejected() -> None:
    d = Driver(INFO)
    d.attach()
    most = MAX_WIDE_ENTRIES // 20_001
    d.submit(0, [5], max_tokens=most, logprobs=20_000)
    d.submit(1, [5], max_tokens=most + 1, logprobs=20_000)
    d.submit(2, [5] * (most - 1), max_tokens=1, logprobs=20_000, prompt_logprobs=20_000, n=2)
    d.submit(3, [5], max_tokens=1, logprobs=20_001)
    d.run()
    assert {handle: code for handle, (code, _) in d.got.errors.items()} == {1: 400, 3: 400}
    assert f"at most {MAX_WIDE_ENTRIES}" in d.got.errors[1][1]
