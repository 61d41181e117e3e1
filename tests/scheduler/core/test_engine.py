"""Requests from arrival to end: stops, cancels, deadlines, rejections, siblings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.engine_driver import Driver, make_request, pack
from support.fake_worker import EOS, generate, next_token, token_logprob, worker_info
from taco_proto.grammars import Grammar
from taco_proto.requests import FinishReason
from taco_proto.sampling_params import SamplingParams
from taco_scheduler.state.sequence import sequence_seed


@pytest.fixture(params=[True, False], ids=["run_ahead", "synchronous"])
def driver(request: pytest.FixtureRequest) -> Driver:
    result = Driver(run_ahead=request.param, max_num_batched_tokens=32)
    result.attach()
    return result


def prompt_that_stops(after: int, seed: int = 1) -> list[int]:
    """A prompt whose answer is `after` tokens long, the last of them EOS."""
    for start in range(1, 10_000):
        prompt = [start % 63 + 1, start // 63 + 1]
        answer = generate(prompt, SamplingParams(max_tokens=100), worker_info(), seed)
        if len(answer) == after and answer[-1] == EOS:
            return prompt
    raise AssertionError("no such prompt")


# ---------------------------------------------------------------------- stops


def test_eos_ends_a_sequence_and_its_extra_step_is_dropped(driver: Driver) -> None:
    prompt = prompt_that_stops(after=3)
    driver.submit(1, prompt, max_tokens=50)
    driver.run()
    assert driver.got.tokens[1, 0] == generate(
        prompt, SamplingParams(max_tokens=50), driver.info, 1
    )
    assert driver.got.reasons[1, 0] is FinishReason.STOP
    assert driver.got.stop_tokens[1, 0] == EOS
    extra = len(driver.plans) - 3
    assert extra == (1 if driver.config.run_ahead else 0)
    assert driver.engine.num_free_blocks == driver.info.num_blocks


def test_a_slot_is_used_again_while_its_extra_step_is_in_flight(driver: Driver) -> None:
    stops, goes_on = prompt_that_stops(after=2), [5, 6, 7]
    for handle in range(1, 20):
        driver.submit(handle, stops if handle % 2 else goes_on, max_tokens=4, ignore_eos=False)
    driver.run()
    for handle in range(1, 20):
        prompt = stops if handle % 2 else goes_on
        expected = generate(prompt, SamplingParams(max_tokens=4), driver.info, 1)
        assert driver.got.tokens[handle, 0] == expected


def test_length_is_known_when_planning_so_no_step_is_wasted(driver: Driver) -> None:
    driver.submit(1, [4, 5, 6], max_tokens=5, ignore_eos=True)
    driver.run()
    assert len(driver.plans) == 5
    assert driver.got.reasons[1, 0] is FinishReason.LENGTH


def test_stop_token_ids_are_per_request(driver: Driver) -> None:
    first = next_token([4, 5, 6], 1, driver.info.vocab_size)
    driver.submit(1, [4, 5, 6], stop_token_ids=[first], ignore_eos=True)
    driver.submit(2, [4, 5, 6], ignore_eos=True)
    driver.run()
    assert driver.got.tokens[1, 0] == [first]
    assert driver.got.stop_tokens[1, 0] == first
    assert len(driver.got.tokens[2, 0]) == 8


def test_a_stop_token_at_the_last_position_counts_as_a_stop(driver: Driver) -> None:
    first = next_token([4, 5, 6], 1, driver.info.vocab_size)
    driver.submit(1, [4, 5, 6], stop_token_ids=[first], max_tokens=1)
    driver.run()
    assert driver.got.reasons[1, 0] is FinishReason.STOP


def test_the_models_length_ends_a_sequence() -> None:
    d = Driver(worker_info(max_model_len=10))
    d.attach()
    d.submit(1, [4, 5, 6], max_tokens=100, ignore_eos=True)
    d.run()
    assert len(d.got.tokens[1, 0]) == 7
    assert d.got.reasons[1, 0] is FinishReason.LENGTH


# -------------------------------------------------------------------- cancels


@pytest.mark.parametrize("num_plans", [0, 1, 2])
@pytest.mark.parametrize("num_outputs", [0, 1])
def test_a_cancel_at_any_moment_frees_once(num_plans: int, num_outputs: int) -> None:
    d = Driver(max_num_batched_tokens=8)
    d.attach()
    d.submit(1, [4] * 13, max_tokens=50, ignore_eos=True)
    for _ in range(num_plans):
        d.plan()
    for _ in range(num_outputs):
        d.deliver()
    d.engine.cancel(d.client, 1)
    d.engine.cancel(d.client, 1)
    assert d.engine.num_free_blocks == d.info.num_blocks
    d.run()
    assert d.got.reasons[1, 0] is FinishReason.ABORTED
    assert d.engine.num_free_blocks == d.info.num_blocks
    assert d.engine.num_requests == 0
    d.submit(2, [4] * 13)
    d.run()
    assert d.got.tokens[2, 0] == generate([4] * 13, SamplingParams(max_tokens=8), d.info, 1)


def test_a_client_that_disconnects_aborts_its_requests(driver: Driver) -> None:
    other = driver.connect()
    driver.engine.submit(other, make_request(1, [1] * 9, max_tokens=90), driver.now)
    driver.submit(1, [2] * 9, max_tokens=20, ignore_eos=True)
    driver.plan()
    driver.engine.disconnect(other)
    driver.received.pop(other)
    driver.run()
    assert len(driver.got.tokens[1, 0]) == 20
    assert driver.engine.num_free_blocks == driver.info.num_blocks


# -------------------------------------------------------- refusals, deadlines


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"prompt": []}, 400),
        ({"prompt": [64]}, 400),
        ({"prompt": [-1]}, 400),
        ({"prompt": [1] * 128}, 400),
        ({"prompt": [1], "logprobs": 21}, 400),
        ({"prompt": [1], "logit_bias": {64: 1.0}}, 400),
        ({"prompt": [1], "stop_token_ids": [64]}, 400),
        ({"prompt": [1], "adapter": "none"}, 404),
        ({"prompt": [1], "n": 2, "emitted": [1]}, 400),
        ({"prompt": [1], "n": 2, "emitted_token_ids": (pack([64]), b"")}, 400),
        ({"prompt": [1], "n": 2, "emitted_token_ids": (b"", pack([64]))}, 400),
        ({"prompt": [1], "n": 2, "emitted_token_ids": (b"", b"abc")}, 400),
        ({"prompt": [1], "n": 2, "finished_indexes": (2,)}, 400),
        ({"prompt": [1], "n": 2, "finished_indexes": (1, 0)}, 400),
        ({"prompt": [1], "cache_salt": "x" * 5000}, 400),
        ({"prompt": [1], "seed": None}, 400),
        ({"prompt": [1], "use_beam_search": True, "grammar": Grammar.of("start: /a/")}, 400),
        ({"prompt": [1], "deadline": float("nan")}, 400),
    ],
)
@pytest.mark.parametrize("attached", [True, False])
def test_a_request_that_cannot_run_is_rejected(fields: dict, code: int, attached: bool) -> None:
    d = Driver()
    if attached:
        d.attach()
    d.submit(1, **fields)
    if not attached:
        d.attach()
    d.collect()
    assert d.got.errors[1][0] == code
    assert d.engine.num_requests == 0


def test_a_prompt_larger_than_the_pool_is_refused() -> None:
    d = Driver(worker_info(num_blocks=3))
    d.attach()
    d.submit(1, [1] * 13)
    d.submit(2, [1] * 12)
    d.run()
    assert d.got.errors[1][0] == 400
    assert "context_length_exceeded" in d.got.errors[1][1]
    assert len(d.got.tokens[2, 0]) == 1


def test_the_queue_is_bounded_but_not_for_resumed_requests() -> None:
    d = Driver(max_waiting_requests=2)
    d.attach()
    for handle in range(3):
        d.submit(handle, [1])
    d.submit(3, [1], emitted=[next_token([1], 1, 64)])
    d.collect()
    assert d.got.errors.keys() == {2}
    assert d.got.errors[2][0] == 429
    d.plan()
    d.submit(4, [1])
    d.run()
    assert d.got.errors.keys() == {2}


def test_a_deadline_ends_the_wait_not_the_run() -> None:
    d = Driver(worker_info(max_num_seqs=1), run_ahead=False)
    d.attach()
    d.submit(1, [1], deadline=d.now + 0.05, max_tokens=50, ignore_eos=True)
    d.submit(2, [2], deadline=d.now + 0.05)
    d.submit(3, [3], deadline=d.now + 100)
    d.run()
    assert d.got.errors == {2: (504, d.got.errors[2][1])}
    assert len(d.got.tokens[1, 0]) == 50
    assert (3, 0) in d.got.reasons


def test_a_deadline_does_not_end_a_preempted_request() -> None:
    d = Driver(worker_info(max_num_seqs=1), run_ahead=False)
    d.attach()
    d.submit(1, [1], deadline=d.now + 1, max_tokens=100, ignore_eos=True)
    d.submit(2, [2], deadline=d.now + 0.5, priority=1)
    d.submit(3, [3], deadline=d.now + 2, n=2, priority=-1, max_tokens=4, ignore_eos=True)
    while (3, 0) not in d.got.reasons:
        d.step()
    d.now += 3  # the second sibling waits for the only slot
    d.run()
    assert d.got.errors.keys() == {1, 2}
    assert len(d.got.tokens[3, 1]) == 4


def test_without_a_worker_requests_wait_up_to_their_deadline() -> None:
    d = Driver()
    d.submit(1, [1], deadline=d.now + 1)
    d.submit(2, [2])
    assert d.engine.next_deadline() == d.now + 1
    d.now += 2
    d.step()
    assert d.got.errors[1][0] == 504
    assert d.engine.next_deadline() is None
    d.attach()
    d.run()
    assert (2, 0) in d.got.reasons


def test_the_deadline_counts_again_once_the_worker_is_lost() -> None:
    d = Driver()
    d.attach()
    d.submit(1, [1], deadline=d.now + 1, max_tokens=100, ignore_eos=True)
    d.step()
    d.now += 2
    d.step()
    assert not d.got.errors
    d.lose_worker()
    d.step()
    assert d.got.errors[1][0] == 504


# ---------------------------------------------------------------- resubmission


def test_a_resumed_request_continues_behind_its_tokens(driver: Driver) -> None:
    expected = generate([4, 5, 6], SamplingParams(max_tokens=9), driver.info, 1)
    driver.submit(1, [4, 5, 6], emitted=expected[:4], max_tokens=9)
    driver.run()
    assert driver.got.tokens[1, 0] == expected[4:]


@given(
    num_emitted=st.lists(st.integers(0, 9), min_size=3, max_size=3),
    finished=st.sets(st.integers(0, 2), max_size=2),
    slots=st.integers(1, 3),
)
def test_several_sequences_continue_where_they_were(
    num_emitted: list[int], finished: set[int], slots: int
) -> None:
    driver = Driver(worker_info(max_num_seqs=slots))
    driver.attach()
    prompt, sampling = [4, 5, 6, 7, 8], SamplingParams(max_tokens=10, ignore_eos=True)
    expected = [generate(prompt, sampling, driver.info, sequence_seed(1, i)) for i in range(3)]
    cuts = [0 if index in finished else num_emitted[index] for index in range(3)]
    driver.submit(
        1,
        prompt,
        n=3,
        emitted_token_ids=tuple(
            pack(tokens[:cut]) for tokens, cut in zip(expected, cuts, strict=True)
        ),
        finished_indexes=tuple(finished),
        max_tokens=10,
        ignore_eos=True,
    )
    driver.run()
    running = set(range(3)) - finished
    assert driver.got.tokens == {(1, i): expected[i][cuts[i] :] for i in running}
    assert driver.got.reasons == dict.fromkeys(((1, i) for i in running), FinishReason.LENGTH)
    assert driver.engine.num_requests == driver.engine.num_waiting == 0


@pytest.mark.parametrize("attached", [True, False])
def test_a_resumed_request_that_was_complete_just_ends(attached: bool) -> None:
    d = Driver()
    if attached:
        d.attach()
    d.submit(1, [4, 5], emitted=[6, 7], max_tokens=2)
    d.submit(2, [4, 5], emitted=[6, EOS], max_tokens=9)
    if not attached:
        d.attach()
    d.run()
    assert d.got.reasons == {(1, 0): FinishReason.LENGTH, (2, 0): FinishReason.STOP}
    assert d.got.stop_tokens == {(1, 0): -1, (2, 0): EOS}
    assert not any(d.got.tokens.values())


# -------------------------------------------------------------------- siblings


def test_siblings_share_the_prompts_blocks_and_differ_in_their_seed(driver: Driver) -> None:
    prompt = [7] * 14
    driver.submit(1, prompt, n=4, ignore_eos=True)
    driver.run()
    for index in range(4):
        sampling = SamplingParams(max_tokens=8, ignore_eos=True)
        seed = sequence_seed(1, index)
        assert driver.got.tokens[1, index] == generate(prompt, sampling, driver.info, seed)
    assert [driver.got.cached[1, index] for index in range(4)] == [0, 12, 12, 12]
    assert driver.plans[0].num_tokens.tolist() == [14]
    assert len({sequence_seed(1, index) for index in range(128)}) == 128


def test_siblings_that_await_the_prefill_have_no_tokens() -> None:
    d = Driver()
    d.submit(1, [7] * 9, n=3)
    request = next(iter(d.engine._requests))
    assert [len(sequence.tokens) for sequence in request.sequences] == [9, 0, 0]


def test_the_next_sibling_takes_over_when_the_first_is_cancelled(driver: Driver) -> None:
    driver.submit(1, [7] * 9, n=3, prompt_logprobs=0)
    driver.engine.cancel(driver.client, 1, 0)
    driver.run()
    assert driver.got.reasons[1, 0] is FinishReason.ABORTED
    assert {(1, 1), (1, 2)} <= driver.got.reasons.keys()
    assert [position for position, _ in driver.got.prompt_logprobs[1]] == list(range(1, 9))


# -------------------------------------------------------------------- logprobs


def test_prompt_logprobs_read_no_cache_but_fill_it(driver: Driver) -> None:
    prompt = [7] * 14
    for handle, logprobs in [(1, None), (2, 0), (3, None)]:
        driver.submit(handle, prompt, n=2, prompt_logprobs=logprobs)
        driver.run()
    assert driver.got.cached[2, 0] == 0
    assert driver.got.cached[3, 0] == 12
    assert driver.got.prompt_logprobs == {
        2: [(i, token_logprob(prompt[:i], prompt[i])) for i in range(1, 14)]
    }


def test_logprobs_reach_only_clients_that_asked(driver: Driver) -> None:
    driver.submit(1, [4, 5], logprobs=0, ignore_eos=True)
    driver.submit(2, [6, 7], ignore_eos=True)
    driver.run()
    tokens = [4, 5, *driver.got.tokens[1, 0]]
    expected = [token_logprob(tokens[:i], tokens[i]) for i in range(2, len(tokens))]
    assert driver.got.logprobs[1, 0] == expected
    assert driver.got.logprobs.get((2, 0), []) == []


# --------------------------------------------------------------------- clients


def test_outputs_merge_while_a_client_is_behind(driver: Driver) -> None:
    driver.submit(1, [4, 5, 6], max_tokens=10, ignore_eos=True)
    while driver.plan() or driver.deliver():
        pass
    batch = driver.client.take()
    assert len(batch.token_ids) == 10
    assert batch.finish_reasons[-1] == FinishReason.LENGTH
    assert not driver.client


def test_a_client_that_never_reads_is_disconnected(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taco_scheduler.state.output_buffer.MAX_BUFFERED_VALUES", 20)
    for handle in range(4):
        driver.submit(handle, [handle + 1], max_tokens=50, ignore_eos=True)
    while driver.plan() or driver.deliver():
        pass
    assert driver.client.overflowed
    assert len(driver.client.take().token_ids) <= 20 + 4


@pytest.mark.parametrize("asked", ["logprobs", "prompt_logprobs"])
def test_log_probabilities_count_towards_the_buffer_limit(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setattr("taco_scheduler.state.output_buffer.MAX_BUFFERED_VALUES", 70)
    driver.submit(1, [3] * 30, max_tokens=30, ignore_eos=True)
    driver.submit(2, [4] * 30, max_tokens=30, ignore_eos=True, **{asked: 0})
    while driver.plan() or driver.deliver():
        pass
    assert driver.client.overflowed
