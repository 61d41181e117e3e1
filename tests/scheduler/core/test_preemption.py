"""Preemption of sequences with steps in flight."""

import pytest

from support.engine_driver import Driver
from support.fake_worker import generate, token_logprob, worker_info
from taco_proto.requests import FinishReason
from taco_proto.sampling_params import SamplingParams
from taco_scheduler.state.sequence import Sequence, Status


def tight_driver() -> Driver:
    """Room for about two of the three sequences that `crowd` submits."""
    d = Driver(worker_info(num_blocks=12), max_num_batched_tokens=64, run_ahead=True)
    d.attach()
    return d


def crowd(d: Driver) -> None:
    for handle in (1, 2, 3):
        d.submit(handle, [handle] * 9, max_tokens=20, ignore_eos=True)


def run_until_one_lands(d: Driver) -> Sequence:
    """Until a sequence is preempted and waits for outputs of steps that it is in."""
    for _ in range(100):
        d.plan()
        worker = d.peers[0].replica.worker
        if worker.preempted:
            return next(iter(worker.preempted.values()))
        if len(d.outputs) == 2:
            d.deliver()
    raise AssertionError("no sequence was preempted")


def test_tokens_in_flight_at_a_preemption_are_used() -> None:
    d = tight_driver()
    crowd(d)
    d.run()
    assert d.engine.counters.num_preemptions > 0
    num_tokens = sum(len(tokens) for tokens in d.got.tokens.values())
    assert num_tokens == 60
    assert d.worker.num_sampled_tokens == num_tokens, "a token was sampled twice"


def test_it_runs_again_only_when_they_have_come() -> None:
    d = tight_driver()
    crowd(d)
    sequence = run_until_one_lands(d)
    assert d.outputs, "its step is in flight"
    assert sequence.status is Status.PREEMPTED
    while sequence.status is Status.PREEMPTED:
        num_outputs_in_flight = sequence.num_outputs_in_flight
        d.deliver()
        assert sequence.num_outputs_in_flight == num_outputs_in_flight - 1
    assert sequence.status is Status.WAITING
    d.run()
    assert len(d.got.tokens[sequence.request.handle, 0]) == 20


def test_a_cancel_while_it_lands_drops_them() -> None:
    d = tight_driver()
    crowd(d)
    sequence = run_until_one_lands(d)
    handle = sequence.request.handle
    d.engine.cancel(d.client, handle)
    d.run()
    assert d.got.reasons[handle, 0] is FinishReason.ABORTED
    assert d.engine.num_free_blocks == d.info.num_blocks
    assert len(d.got.reasons) == 3


def test_prompt_logprobs_come_once_though_the_prefill_is_done_twice() -> None:
    d = Driver(worker_info(num_blocks=13), max_num_batched_tokens=3, run_ahead=False)
    d.attach()
    prompt = list(range(1, 41))
    d.submit(1, [50] * 7, max_tokens=30, ignore_eos=True)
    d.step()
    d.step()
    d.submit(2, prompt, prompt_logprobs=0, priority=1, max_tokens=3, ignore_eos=True)
    d.run()
    assert d.engine.counters.num_preemptions == 1
    assert d.got.prompt_logprobs[2] == [
        (i, token_logprob(prompt[:i], prompt[i])) for i in range(1, 40)
    ]


@pytest.mark.parametrize("swaps", [False, True])
def test_a_preempted_sequence_is_computed_again_or_loaded_from_the_host(swaps: bool) -> None:
    info = worker_info(num_blocks=12, num_host_blocks=32)
    # What only one sequence has used is not worth a copy, unless it was preempted.
    d = Driver(info, max_num_batched_tokens=64, offload_min_accesses=2, swaps_preempted=swaps)
    d.attach()
    crowd(d)
    d.run()
    assert d.engine.counters.num_preemptions > 0
    tiers = d.worker.tiers
    assert (tiers.num_offloaded > 0) == (tiers.num_loaded > 0) == swaps
    for handle in (1, 2, 3):
        sampling = SamplingParams(max_tokens=20, ignore_eos=True)
        assert d.got.tokens[handle, 0] == generate([handle] * 9, sampling, info, 1)


def test_a_swapped_sequence_is_not_computed_again() -> None:
    computed = {}
    for swaps in (False, True):
        info = worker_info(num_blocks=12, num_host_blocks=32)
        d = Driver(
            info,
            max_num_batched_tokens=64,
            offload_min_accesses=2,
            swaps_preempted=swaps,
            run_ahead=False,
        )
        d.attach()
        crowd(d)
        d.run()
        computed[swaps] = d.worker.num_computed_tokens
    # Full blocks come back; at most a block and the token that is next are computed once more.
    num_preemptions = d.engine.counters.num_preemptions
    assert computed[True] < computed[False]
    assert computed[True] <= 3 * (9 + 19) + num_preemptions * info.block_size


def test_a_release_does_not_cache_blocks_of_steps_in_flight() -> None:
    d = Driver(max_num_batched_tokens=64, run_ahead=True)
    d.attach()
    prompt = [9] * 7
    answer = generate(prompt, SamplingParams(max_tokens=2, ignore_eos=True), d.info, 1)
    d.submit(1, prompt, max_tokens=9, ignore_eos=True)
    d.plan()
    d.deliver()
    d.worker.fails = lambda plan: True
    d.plan()  # it would fill the second block
    d.worker.fails = lambda plan: False
    d.engine.cancel(d.client, 1)
    d.submit(2, [*prompt, answer[0], 3])
    d.run()
    assert d.got.cached[2, 0] == 4
