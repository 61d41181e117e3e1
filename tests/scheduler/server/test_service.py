"""The service's loop, with a worker in this process."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest

from support.engine_driver import Received, make_request
from support.fake_worker import FakeWorker, generate, worker_info
from support.patience import PATIENCE_SECONDS
from taco_proto.config import SchedulerConfig
from taco_proto.convert import step_plan_from_pb
from taco_proto.errors import ConfigurationError
from taco_proto.grammars import Grammar
from taco_proto.kv_tiers import StoreReport
from taco_proto.steps import StepOutput, StepPlan
from taco_scheduler.admission.validation import OtherModelError
from taco_scheduler.core.replica import Replica
from taco_scheduler.server.client_session import ClientSession, SessionClosedError
from taco_scheduler.server.service import SchedulerService
from taco_scheduler.server.worker_links import RemoteWorkerLink


@pytest.fixture
async def service() -> AsyncIterator[SchedulerService]:
    service = SchedulerService(SchedulerConfig(log_stats=False))
    await service.start()
    yield service
    await service.stop()


async def collect(session: ClientSession, num_ends: int) -> Received:
    """Takes outputs until this number of sequences has ended."""
    received = Received()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(received.reasons) + len(received.errors) < num_ends:
            received.add(await session.next_batch())
    return received


async def test_two_clients_get_their_own_tokens(service: SchedulerService) -> None:
    worker = FakeWorker()
    service.attach_local(worker)
    sessions = [service.connect("a"), service.connect("b")]
    requests = [make_request(1, [10 + i, 4, 5], seed=i, max_tokens=20) for i in range(2)]
    for session, request in zip(sessions, requests, strict=True):
        session.submit(request)
    for i, session in enumerate(sessions):
        received = await collect(session, 1)
        expected = generate([10 + i, 4, 5], requests[i].sampling, worker.info, i)
        assert received.tokens[1, 0] == expected


async def test_a_worker_gets_a_grammar_before_the_requests_that_it_takes_over(
    service: SchedulerService,
) -> None:
    busy = RemoteWorkerLink(worker_info(name="a", max_num_seqs=1))
    service.attach(busy)
    session = service.connect("a")
    grammar = Grammar.of("start: /a+/")
    for handle in range(4):
        session.submit(make_request(handle, [handle + 1] * 9, grammar=grammar, max_tokens=4))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await busy.next_command()).plan.epoch == 0:  # type: ignore[union-attr]
            pass
        idle = RemoteWorkerLink(worker_info(name="b", max_num_seqs=1))
        service.attach(idle)
        first, second = [await idle.next_command() for _ in range(2)]
    assert first is not None
    assert second is not None
    assert list(first.grammars.compiled_hashes) == [grammar.hash]
    assert list(second.plan.joined.grammar_hashes) == [grammar.hash]


async def test_model_info_waits_for_the_first_worker(service: SchedulerService) -> None:
    session = service.connect("a")
    assert (await session.next_message()).ready is False  # type: ignore[union-attr]
    waiting = asyncio.create_task(session.model_info())
    await asyncio.sleep(0)
    assert not waiting.done()
    service.attach_local(FakeWorker())
    assert (await waiting).model == "fake-model"
    assert (await session.next_message()).ready is True  # type: ignore[union-attr]


async def test_an_executor_that_raises_fails_its_step_only(service: SchedulerService) -> None:
    class Clumsy(FakeWorker):
        num_calls = 0

        def execute(self, plan: StepPlan) -> StepOutput:
            self.num_calls += 1
            if self.num_calls == 2:
                raise RuntimeError("out of memory")
            return super().execute(plan)

    service.attach_local(Clumsy())
    session = service.connect("a")
    request = make_request(1, [4, 5, 6], max_tokens=20, ignore_eos=True)
    session.submit(request)
    received = await collect(session, 1)
    assert received.tokens[1, 0] == generate([4, 5, 6], request.sampling, worker_info(), 1)


async def test_failed_tuning_stops_and_steps_continue(
    service: SchedulerService, caplog: pytest.LogCaptureFixture
) -> None:
    failed = threading.Event()

    class Tuning(FakeWorker):
        num_calls = 0

        def tune(self) -> bool:
            self.num_calls += 1
            if self.num_calls == 3:
                failed.set()
                raise RuntimeError("no graph")
            return True

    worker = Tuning()
    service.attach_local(worker)
    assert await asyncio.to_thread(failed.wait, PATIENCE_SECONDS)
    session = service.connect("a")
    request = make_request(1, [4, 5, 6], max_tokens=5, ignore_eos=True)
    session.submit(request)
    received = await collect(session, 1)
    assert received.tokens[1, 0] == generate([4, 5, 6], request.sampling, worker_info(), 1)
    assert worker.num_calls == 3
    assert caplog.text.count("stops tuning later steps") == 1


async def test_steps_run_while_the_next_one_is_planned(service: SchedulerService) -> None:
    """With run-ahead the executor never waits for its output to be taken."""
    queued = threading.Semaphore(0)

    class Waiting(FakeWorker):
        def execute(self, plan: StepPlan) -> StepOutput:
            output = super().execute(plan)
            if plan.step_id == 1:
                assert queued.acquire(timeout=PATIENCE_SECONDS), (
                    "plan 2 was not sent before output 1"
                )
            return output

    service.attach_local(Waiting())
    plan, num_plans = service.engine.plan, 0

    def counting_plan(replica: Replica, now: float) -> StepPlan | None:
        nonlocal num_plans
        result = plan(replica, now)
        num_plans += result is not None
        if num_plans == 2:
            queued.release()
        return result

    service.engine.plan = counting_plan  # type: ignore[method-assign]
    session = service.connect("a")
    session.submit(make_request(1, [4, 5, 6], max_tokens=3, ignore_eos=True))
    await collect(session, 1)


@pytest.mark.parametrize(("of_worker", "num_lines"), [(512, 1), (2048, 0), (4096, 0)])
async def test_a_worker_with_the_smaller_step_is_logged(
    service: SchedulerService, caplog: pytest.LogCaptureFixture, of_worker: int, num_lines: int
) -> None:
    caplog.set_level("INFO")
    service.attach_local(FakeWorker(worker_info(max_num_batched_tokens=of_worker)))
    assert caplog.text.count("computes at most 512 tokens in a step") == num_lines


async def test_a_deadline_passes_while_nothing_else_happens(service: SchedulerService) -> None:
    session = service.connect("a")
    session.submit(make_request(1, [4], deadline=time.monotonic() + 0.05))
    received = await collect(session, 1)
    assert received.errors[1][0] == 504


async def test_draining_finishes_what_runs_and_refuses_the_rest(service: SchedulerService) -> None:
    service.attach_local(FakeWorker())
    session = service.connect("a")
    session.submit(make_request(1, [4, 5, 6], max_tokens=60, ignore_eos=True))
    draining = asyncio.create_task(service.drain(PATIENCE_SECONDS))
    await asyncio.sleep(0)
    session.submit(make_request(2, [4, 5, 6]))
    received = await collect(session, 2)
    assert len(received.tokens[1, 0]) == 60
    assert received.errors[2][0] == 503
    taking = asyncio.create_task(session.next_batch())
    await draining
    taking.cancel()


async def test_draining_writes_what_is_cached_to_disk(service: SchedulerService) -> None:
    worker = FakeWorker(worker_info(num_host_blocks=16, num_disk_blocks=16))
    worker.tiers.is_full = True
    service.attach_local(worker)
    session = service.connect("a")
    session.submit(make_request(1, [10] * 9, max_tokens=8, ignore_eos=True))
    await collect(session, 1)
    worker.tiers.is_full = False
    session.close()
    await service.drain(PATIENCE_SECONDS)
    assert len(worker.tiers.files) == 4


async def test_draining_has_a_limit(service: SchedulerService) -> None:
    service.connect("a").submit(make_request(1, [4]))
    await service.drain(0.01)
    assert service.engine.num_requests == 1


async def test_a_closed_session_frees_everything(service: SchedulerService) -> None:
    service.attach_local(FakeWorker())
    session = service.connect("a")
    for handle in range(4):
        session.submit(make_request(handle, [handle + 1] * 9, max_tokens=100, ignore_eos=True))
    await session.next_batch()
    session.close()
    session.close()
    session.submit(make_request(9, [1]))
    session.cancel(1)
    assert service.engine.num_requests == 0
    assert service.engine.num_free_blocks == worker_info().num_blocks
    with pytest.raises(SessionClosedError):
        await session.next_batch()


async def test_stopping_ends_every_session() -> None:
    service = SchedulerService(SchedulerConfig(log_stats=True))
    await service.start()
    service.attach_local(FakeWorker())
    session = service.connect("a")
    waiting = asyncio.create_task(session.next_batch())
    await asyncio.sleep(0)
    await service.stop()
    await service.stop()
    with pytest.raises(SessionClosedError, match="stopped"):
        await waiting


async def test_a_client_that_is_too_far_behind_is_disconnected(
    service: SchedulerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taco_scheduler.state.output_buffer.MAX_BUFFERED_VALUES", 50)
    service.attach_local(FakeWorker())
    idle, reader = service.connect("idle"), service.connect("reader")
    for session in (idle, reader):
        session.submit(make_request(1, [4, 5], max_tokens=100, ignore_eos=True))
    received = await collect(reader, 1)
    assert len(received.tokens[1, 0]) == 100
    with pytest.raises(SessionClosedError, match="does not take"):
        await idle.next_batch()
    assert service.engine.num_requests == 0


async def test_a_bug_in_the_loop_ends_the_sessions_with_it(service: SchedulerService) -> None:
    session = service.connect("a")

    def broken(now: float) -> None:
        raise ZeroDivisionError

    service.engine.expire = broken  # type: ignore[method-assign]
    session.submit(make_request(1, [4]))
    with pytest.raises(SessionClosedError, match="failed"):
        await session.next_batch()
    await service.until_ended()


@pytest.mark.parametrize(
    "change", [{"model": "other"}, {"vocab_size": 65}, {"eos_token_ids": (1,)}, {"block_size": 8}]
)
async def test_workers_of_another_model_are_turned_away(
    service: SchedulerService, change: dict
) -> None:
    service.attach_local(FakeWorker())
    with pytest.raises(OtherModelError, match=f"has {next(iter(change))} "):
        service.attach_local(FakeWorker(worker_info(**change)))
    service.attach_local(FakeWorker(worker_info(num_blocks=100, max_model_len=200)))
    assert service.num_workers == 2
    model = await service.first_model_info()
    assert (model.max_model_len, model.num_blocks) == (200, 164)


async def test_a_broken_local_worker_ends_the_sessions_unless_there_is_another_one(
    service: SchedulerService,
) -> None:
    class Breaking(FakeWorker):
        def execute(self, plan: StepPlan) -> StepOutput:
            self.is_broken = True
            return StepOutput(epoch=plan.epoch, step_id=plan.step_id, error="CUDA error")

    service.attach_local(Breaking())
    service.attach_local(FakeWorker())
    session = service.connect("a")
    request = make_request(1, [4, 5, 6], max_tokens=20, ignore_eos=True)
    session.submit(request)
    received = await collect(session, 1)
    assert received.tokens[1, 0] == generate([4, 5, 6], request.sampling, worker_info(), 1)
    assert service.num_workers == 1
    last = SchedulerService(SchedulerConfig(log_stats=False))
    await last.start()
    last.attach_local(Breaking())
    session = last.connect("b")
    session.submit(make_request(1, [4, 5, 6]))
    with pytest.raises(SessionClosedError, match="the device has failed"):
        await session.next_batch()
    await last.stop()


async def test_outputs_and_reports_of_a_lost_worker_are_dropped(service: SchedulerService) -> None:
    lost, worker = RemoteWorkerLink(worker_info()), FakeWorker()
    service.attach(lost)
    session = service.connect("a")
    request = make_request(1, [4, 5, 6], max_tokens=6, ignore_eos=True)
    session.submit(request)
    async with asyncio.timeout(PATIENCE_SECONDS):
        command = await lost.next_command()
    assert command is not None
    late = worker.execute(step_plan_from_pb(command.plan))
    service.on_step_output(lost, late)
    service.on_worker_lost(lost, "the test took it away")  # before the turn that commits
    service.on_step_output(lost, late)
    service.on_step_announced(lost, late.epoch, late.step_id)
    service.on_store_report(lost, StoreReport())
    service.attach_local(FakeWorker())
    received = await collect(session, 1)
    assert received.tokens[1, 0] == generate([4, 5, 6], request.sampling, worker.info, 1)


def test_limits_of_zero_are_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="max_num_seqs"):
        SchedulerService(SchedulerConfig(max_num_seqs=0))
