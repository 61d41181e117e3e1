"""Row errors: one sequence fails in a step, and no other request changes."""

import logging
from dataclasses import replace

import numpy as np
import pytest

from support.engine_driver import Driver
from support.fake_worker import ROW_ERROR, Row, generate, worker_info
from taco_proto.requests import FinishReason, PrefixPin
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import EMPTY, RowError, RowErrorCode, StepOutput
from taco_scheduler.faults.row_errors import MAX_MESSAGE_CHARS
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.state.in_flight import InvalidOutputError

POISON = 60
PROMPT = [9] * 8 + [POISON] + [9] * 8


def has_computed_poison(row: Row) -> bool:
    return POISON in row.tokens[: row.num_computed]


def poisonable(**config: object) -> Driver:
    """A driver whose worker fails every row that has computed the token POISON."""
    info = config.pop("info", None)
    d = Driver(info, **config)  # type: ignore[arg-type]
    d.attach().worker.fails_row = has_computed_poison
    return d


def num_cached_tokens(d: Driver, prompt: list[int]) -> int:
    blocks = d.peers[0].replica.worker.blocks
    packed = np.array(prompt, dtype=np.int32).tobytes()
    return blocks.num_cached_tokens(packed, CacheNamespace())


@pytest.mark.parametrize("run_ahead", [False, True])
@pytest.mark.parametrize("budget", [5, 64], ids=["in chunks", "at once"])
@pytest.mark.parametrize("max_drafts", [0, 3])
def test_a_failed_row_ends_its_request_and_no_other(
    run_ahead: bool, budget: int, max_drafts: int
) -> None:
    info = worker_info(max_draft_tokens=max_drafts, drafts_itself=max_drafts > 0)
    d = poisonable(info=info, run_ahead=run_ahead, max_num_batched_tokens=budget)
    d.submit(0, PROMPT)
    for handle in range(1, 5):
        d.submit(handle, [handle] * 6, max_tokens=12)
    d.run()
    assert d.got.errors == {0: (500, ROW_ERROR)}
    assert d.got.reasons_of_errors == {0: "invalid_logits"}
    for handle in range(1, 5):
        expected = generate([handle] * 6, SamplingParams(max_tokens=12), info, 1)
        assert d.got.tokens[handle, 0] == expected
    assert {plan.epoch for plan in d.plans} == {d.plans[0].epoch}, "no new epoch"
    assert d.engine.num_free_blocks == d.engine.num_blocks
    assert not any(plan.is_announced for plan in d.plans), "nothing is suspected"
    lines = d.metrics()
    assert 'taco:row_errors_total{code="invalid_logits",model_name="fake-model"} 1.0' in lines
    assert 'taco:failed_steps_total{model_name="fake-model"} 0.0' in lines


def test_a_row_that_fails_while_it_decodes_keeps_what_the_client_has() -> None:
    d = poisonable(run_ahead=True)
    sampling = SamplingParams(max_tokens=40, ignore_eos=True)
    prompt = next(
        [token] * 5
        for token in range(1, 50)
        if POISON in generate([token] * 5, sampling, d.info, 1)[3:30]
    )
    expected = generate(prompt, sampling, d.info, 1)
    d.submit(0, prompt, max_tokens=40, ignore_eos=True)
    d.run()
    assert d.got.errors == {0: (500, ROW_ERROR)}
    assert d.got.tokens[0, 0] == expected[: expected.index(POISON) + 1]
    assert (0, 0) not in d.got.reasons


def test_one_failed_sequence_of_several_fails_their_request_once() -> None:
    d = poisonable()
    d.submit(0, PROMPT, n=3)
    d.run()
    assert d.got.errors == {0: (500, ROW_ERROR)}
    assert d.engine.num_requests == 0


@pytest.mark.parametrize("budget", [5, 64], ids=["in chunks", "at once"])
def test_nothing_of_a_failed_sequence_stays_cached(budget: int) -> None:
    d = poisonable(run_ahead=True, max_num_batched_tokens=budget)
    d.submit(0, PROMPT)
    d.run()
    assert num_cached_tokens(d, PROMPT) == 0


def test_a_prefix_that_a_sequence_or_pin_uses_stays_cached() -> None:
    d = poisonable()
    d.submit(0, [9] * 9, pins=(PrefixPin(8, 1000.0),))
    d.submit(1, PROMPT[:8] + [4] * 8)
    d.run()
    d.submit(2, PROMPT)
    d.run()
    assert num_cached_tokens(d, PROMPT) == 8
    assert num_cached_tokens(d, PROMPT[:8] + [4] * 8) == 12


def test_files_of_a_failed_sequence_are_deleted() -> None:
    info = worker_info(num_blocks=14, num_host_blocks=48, num_disk_blocks=100)
    d = Driver(info, run_ahead=False)
    d.attach()
    d.step()  # the worker reports what it has
    d.submit(0, PROMPT, max_tokens=1)
    d.submit(1, [7] * 9, max_tokens=1)
    d.run()
    files = d.worker.tiers.files
    assert len(files) > 2
    d.worker.fails_row = has_computed_poison
    d.submit(2, [*PROMPT, 1])
    d.run()
    assert 2 in d.got.errors
    sevens = np.array([7] * 4, dtype=np.int32).tobytes()
    assert [block.token_ids for block, _ in files.values()] == [sevens] * 2


def test_a_sequence_that_was_preempted_with_a_step_in_flight_fails_as_well() -> None:
    """Two sequences outgrow the pool; the worker's output names the preempted one."""
    d = Driver(worker_info(num_blocks=6), run_ahead=True)
    d.attach()
    d.submit(0, [1] * 8, max_tokens=12, ignore_eos=True)
    d.submit(1, [2] * 8, max_tokens=12, ignore_eos=True)
    preempted = d.peers[0].replica.worker.preempted
    while not preempted:
        if not d.plan():
            d.deliver()
            d.collect()
    (sequence,) = preempted.values()
    handle = sequence.request.handle
    step = d.peers[0].replica.worker.in_flight.steps[0]
    slot = int(step.slots[step.generations == sequence.slot_generation][0])
    output = d.outputs[0]
    failed = RowError(slot, RowErrorCode.INVALID_LOGITS, ROW_ERROR)
    d.outputs[0] = StepOutput(
        epoch=output.epoch,
        step_id=output.step_id,
        slots=output.slots,
        token_ids=output.token_ids,
        row_errors=(failed,),
    )
    d.deliver()
    d.run()
    assert d.got.errors == {handle: (500, ROW_ERROR)}
    assert num_cached_tokens(d, [handle + 1] * 9) == 0
    assert d.got.reasons == {(1 - handle, 0): FinishReason.LENGTH}
    assert d.engine.num_free_blocks == d.engine.num_blocks


def test_a_row_error_of_a_sequence_that_has_ended_is_dropped() -> None:
    d = poisonable(run_ahead=True)
    d.submit(0, PROMPT)
    d.plan()
    d.engine.cancel(d.client, 0)
    d.run()
    assert not d.got.errors
    assert d.got.reasons[0, 0] is FinishReason.ABORTED


@pytest.mark.parametrize(
    "slots", [[5], [0, 0], [-1]], ids=["did not run", "twice", "below the first"]
)
def test_invalid_row_errors_are_the_workers_fault(slots: list[int]) -> None:
    d = Driver()
    d.attach()
    d.submit(0, [1, 2, 3])
    d.plan()
    step = d.plans[0]
    errors = tuple(RowError(slot, RowErrorCode.INVALID_LOGITS, "x") for slot in slots)
    output = StepOutput(
        epoch=step.epoch,
        step_id=step.step_id,
        slots=step.slots,
        token_ids=np.array([1], dtype=np.int32),
        num_tokens=EMPTY,
        row_errors=errors,
    )
    with pytest.raises(InvalidOutputError, match="row error"):
        d.peers[0].replica.steps.commit(output, d.now)


def test_a_long_message_is_cut_and_its_newlines_stay_out_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    d = Driver()
    d.attach()
    d.submit(0, [1, 2, 3])
    d.plan()
    output = d.outputs[0]
    d.outputs[0] = StepOutput(
        epoch=output.epoch,
        step_id=output.step_id,
        slots=output.slots,
        token_ids=output.token_ids,
        row_errors=(RowError(0, RowErrorCode.UNKNOWN, "a\nb" * 1000),),
    )
    d.deliver()
    d.collect()
    assert len(d.got.errors[0][1]) == MAX_MESSAGE_CHARS
    assert "request-0 failed" in caplog.text
    assert "a\nb" not in caplog.text


@pytest.mark.parametrize(
    ("code", "status", "level"),
    [
        (RowErrorCode.NO_ALLOWED_TOKEN, 400, logging.INFO),
        (RowErrorCode.GRAMMAR_LIMIT, 400, logging.INFO),
        (RowErrorCode.INVALID_ARGUMENTS, 400, logging.INFO),
        (RowErrorCode.PROCESSOR_FAILED, 500, logging.ERROR),
    ],
)
def test_a_clients_mistake_is_not_logged_as_an_error(
    caplog: pytest.LogCaptureFixture, code: RowErrorCode, status: int, level: int
) -> None:
    d = Driver()
    d.attach()
    d.submit(0, [1, 2, 3])
    d.plan()
    d.outputs[0] = replace(d.outputs[0], row_errors=(RowError(0, code, "x"),))
    with caplog.at_level(logging.INFO):
        d.deliver()
    d.collect()
    assert d.got.errors[0] == (status, "x")
    (record,) = (each for each in caplog.records if "request-0 failed" in each.getMessage())
    assert record.levelno == level
