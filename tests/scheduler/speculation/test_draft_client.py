"""A draft worker beside the engine: sequences that await drafts, and invalid or late replies."""

from dataclasses import replace

import numpy as np
import pytest

from support.engine_driver import Driver, make_request
from support.fake_drafter import FakeDrafter
from support.fake_worker import generate, worker_info
from taco_proto.drafts import DraftReply
from taco_scheduler.admission.validation import InvalidWorkerError
from taco_scheduler.speculation import draft_length_controller

PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture(autouse=True)
def _asked_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_length_controller, "_PLAIN_STEPS", 0)


def make_driver(**config: object) -> Driver:
    driver = Driver(worker_info(max_draft_tokens=4), num_speculative_tokens=4, **config)
    driver.attach()
    return driver


def make_drafted(
    drafter: FakeDrafter | None = None, max_tokens: int = 24, **config: object
) -> Driver:
    """A request that a draft worker drafts for."""
    driver = make_driver(**config)
    driver.attach_drafter(drafter)
    driver.submit(1, PROMPT, max_tokens=max_tokens, ignore_eos=True)
    return driver


def make_asked() -> Driver:
    """After the prompt's step; the draft worker has been asked, and its reply is on its way."""
    driver = make_drafted()
    assert driver.plan()
    assert not driver.plan(), "it must not run ahead: its drafts follow a token that is on its way"
    driver.deliver()
    assert driver.ask()
    return driver


def expected(driver: Driver, max_tokens: int) -> list[int]:
    sampling = make_request(1, PROMPT, max_tokens=max_tokens, ignore_eos=True).sampling
    return generate(PROMPT, sampling, driver.info, 1)


def drafted_plans(driver: Driver) -> int:
    return sum(plan.drafts is not None for plan in driver.plans)


def test_right_drafts_save_steps() -> None:
    plain = make_driver()
    plain.submit(1, PROMPT, max_tokens=24, ignore_eos=True)
    plain.run()
    driver = make_drafted()
    driver.run()
    assert driver.got.tokens == plain.got.tokens
    assert drafted_plans(driver) > 2
    assert driver.engine.counters.speculation.accepted_tokens > 8


def test_sequences_wait_for_their_drafts() -> None:
    driver = make_asked()
    assert not driver.plan()
    driver.reply()
    assert driver.plan()


@pytest.mark.parametrize("run_ahead", [False, True])
def test_drafting_starts_once_plain_steps_were_measured(
    run_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_length_controller, "_PLAIN_STEPS", 3)
    driver = make_drafted(run_ahead=run_ahead)
    driver.run()
    assert drafted_plans(driver) > 0
    assert driver.plans[1].drafts is None


def test_a_step_whose_sequences_are_all_cancelled_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(draft_length_controller, "_PLAIN_STEPS", 3)
    driver = make_drafted()
    while not (drafted_plans(driver) and driver.outputs):
        driver.ask()
        driver.reply()
        if not driver.plan():
            driver.deliver()
    driver.engine.cancel(driver.client, 1)
    driver.run()
    assert not driver.engine.num_requests


def test_others_do_not_wait() -> None:
    driver = make_asked()
    driver.submit(2, [9, 9, 9], max_tokens=4)
    assert driver.plan(), "a prompt has no drafts to wait for"


def test_without_drafts_rows_may_verify_nothing() -> None:
    driver = Driver(worker_info(max_draft_tokens=4, drafts_itself=False), num_speculative_tokens=4)
    driver.attach()
    driver.submit(1, PROMPT, max_tokens=12, ignore_eos=True)
    driver.run()
    assert not any(plan.max_drafts.any() for plan in driver.plans)
    driver.attach_drafter()
    driver.submit(2, PROMPT, max_tokens=24, ignore_eos=True)
    driver.run()
    assert any(plan.max_drafts.any() for plan in driver.plans)


def test_a_late_reply_is_not_waited_for() -> None:
    driver = make_asked()
    assert not driver.plan()
    deadline = driver.engine.next_deadline()
    assert deadline is not None
    driver.now = deadline
    assert driver.plan()
    assert driver.plans[-1].drafts is None
    assert driver.engine.counters.num_late_drafts == 1
    assert driver.plan(), "with the draft worker behind, it runs ahead again"
    driver.run()
    assert driver.got.tokens[1, 0] == expected(driver, 24)


def test_a_reply_that_stays_out_is_a_stall_after_the_step_timeout() -> None:
    driver = make_asked()
    client = driver.speculation.client
    assert client.stall_deadline(120.0) == driver.now + 120.0
    driver.reply()
    assert client.stall_deadline(120.0) is None


def test_slow_replies_are_no_stall_where_replies_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = make_asked()
    controller = draft_length_controller.DraftLengthController
    monkeypatch.setattr(controller, "draft_seconds", 30.0)
    assert driver.speculation.client.stall_deadline(120.0) == driver.now + 300.0


def test_a_lost_draft_worker_delays_no_sequence() -> None:
    driver = make_asked()
    driver.lose_drafter()
    assert driver.plan()
    driver.run()
    assert driver.got.tokens[1, 0] == expected(driver, 24)


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": np.array([64], dtype=np.int32)},
        {"token_ids": np.array([-1], dtype=np.int32)},
        {"num_drafts": np.array([9], dtype=np.int32), "token_ids": np.zeros(9, dtype=np.int32)},
        {"num_drafts": np.array([2], dtype=np.int32)},
        {"sequences": np.array([77], dtype=np.int64)},
        {"request_id": 99},
    ],
)
def test_invalid_drafts_are_dropped_and_counted(changes: dict) -> None:
    driver = make_asked()
    number = next(iter(driver.drafter.sequences))  # type: ignore[union-attr]
    reply = DraftReply(
        request_id=1,
        sequences=np.array([number], dtype=np.int64),
        num_drafts=np.array([1], dtype=np.int32),
        token_ids=np.array([5], dtype=np.int32),
    )
    real = driver.replies.popleft()
    driver.speculation.client.take(replace(reply, **changes), driver.now)
    assert driver.engine.counters.num_invalid_drafts == 1
    if "request_id" in changes:  # the answer itself is still to come
        driver.speculation.client.take(real, driver.now)
    assert driver.plan()
    driver.run()
    assert driver.got.tokens[1, 0] == expected(driver, 24)


def test_another_vocabulary_is_refused() -> None:
    driver = make_driver()
    with pytest.raises(InvalidWorkerError, match="vocabulary of 65 tokens, but fake-model has 64"):
        driver.attach_drafter(FakeDrafter(vocab_size=65))
    driver.submit(1, PROMPT, max_tokens=8)
    driver.run()
    assert drafted_plans(driver) == 0


def test_a_worker_without_speculation_rejects_a_draft_worker() -> None:
    driver = Driver()
    driver.attach()
    with pytest.raises(InvalidWorkerError, match="does not verify drafts"):
        driver.attach_drafter()


def test_sequences_beyond_the_draft_models_length_go_on_without() -> None:
    driver = make_drafted(FakeDrafter(max_model_len=12), max_tokens=30)
    driver.run()
    assert driver.got.tokens[1, 0] == expected(driver, 30)
    lengths = [n for p in driver.plans if p.drafts is not None for n in p.drafts.num_tokens]
    assert max(lengths) < 12


def test_sequences_beyond_the_draft_models_length_run_ahead() -> None:
    driver = make_drafted(FakeDrafter(max_model_len=len(PROMPT)))
    assert driver.plan()
    assert driver.plan(), "no drafts follow the token that is on its way"


def test_the_time_before_a_draft_worker_came_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_length_controller, "_PLAIN_STEPS", 3)
    driver = make_driver()
    driver.now = 864_000.0
    driver.submit(1, PROMPT, max_tokens=24, ignore_eos=True)
    for _ in range(2):
        driver.step()
    plain_seconds: list[float] = []
    monkeypatch.setattr(
        draft_length_controller.DraftLengthController,
        "note_plain_step",
        lambda self, num_sequences, num_tokens, seconds: plain_seconds.append(seconds),
    )
    driver.attach_drafter()
    for _ in range(4):
        driver.step()
    assert plain_seconds
    assert max(plain_seconds) < 60.0


def test_with_many_requests_no_drafts_are_requested() -> None:
    driver = make_driver(speculative_disable_by_batch_size=2)
    driver.attach_drafter()
    for handle in range(3):
        driver.submit(handle, [3 + handle, 7], max_tokens=10, ignore_eos=True)
    while len(driver.got.reasons) == 0:
        driver.step()
    assert drafted_plans(driver) == 0


def test_long_sequences_are_decoded_plainly() -> None:
    driver = make_drafted(max_tokens=30, speculative_max_model_len=10)
    driver.run()
    for plan in driver.plans:
        if plan.drafts is not None:
            assert (plan.drafts.num_tokens + plan.drafts.num_drafts <= 10).all()
    assert driver.got.tokens[1, 0] == expected(driver, 30)
