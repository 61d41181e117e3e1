import asyncio
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from support.admin_pages import get
from support.checkpoints import make_checkpoint
from support.fake_scheduler import serve, soon
from support.license_server import LicenseServer
from support.licenses import Clock, gpu_names, make_license, signed
from support.patience import PATIENCE_SECONDS, until
from support.plans import Join, make_plan
from taco_proto import scheduler_pb2 as pb
from taco_proto.config import (
    PROTOCOL_VERSION,
    LicenseConfig,
    ModelConfig,
    TlsConfig,
    WorkerConfig,
)
from taco_proto.convert import step_plan_to_pb
from taco_proto.steps import RowError, RowErrorCode, StepOutput, StepPlan
from taco_worker.licensing import Licensing
from taco_worker.model_thread import ModelThread
from taco_worker.scheduler_link import SchedulerLink
from taco_worker.worker import Worker

FIRST = make_plan({0: 3}, joined=[Join(0, [5, 6, 7], [1])], epoch=9)


class GatedWorker(Worker):
    """A worker whose steps wait at a gate."""

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(config)
        self.gate = threading.Event()
        self.step_begun = threading.Event()

    def execute(self, plan: StepPlan) -> StepOutput:
        self.step_begun.set()
        self.gate.wait()
        return super().execute(plan)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> WorkerConfig:
    checkpoint = make_checkpoint(tmp_path_factory.mktemp("llama"))
    return WorkerConfig(
        model=ModelConfig(model=str(checkpoint)), num_blocks=64, max_num_seqs=8, num_threads=1
    )


@pytest.fixture(scope="module")
def worker(config: WorkerConfig) -> Worker:
    return Worker(config)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/scheduler.sock"


async def test_hello_plans_and_outputs_over_the_stream(worker: Worker, address: str) -> None:
    stop = asyncio.Event()
    async with serve(address) as scheduler:
        link = asyncio.create_task(SchedulerLink(address, worker, ModelThread()).run(stop))
        hello = await soon(scheduler.worker_hellos.get())
        assert hello.protocol_version == PROTOCOL_VERSION
        assert (hello.num_blocks, hello.max_num_seqs) == (64, 8)
        for plan in (FIRST, make_plan({0: 1}, epoch=9, step_id=2), make_plan({7: 1}, epoch=9)):
            scheduler.plans.put_nowait(plan)
        outputs = [await soon(scheduler.outputs.get()) for _ in range(3)]
        assert [len(output.token_ids) for output in outputs] == [1, 1, 0]
        assert [output.step_id for output in outputs] == [1, 2, 1]
        assert "invalid plan" in outputs[2].error
        stop.set()
        assert await soon(link) == "the stream was closed"
        await soon(scheduler.goodbyes.get())


async def test_an_output_that_cannot_be_encoded_is_a_failed_step(
    worker: Worker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler gets an answer, and the stream stays."""
    row_error = RowError(0, RowErrorCode.PROCESSOR_FAILED, "\ud800")
    output_of_step = StepOutput(epoch=9, step_id=1, row_errors=(row_error,))
    with monkeypatch.context() as patch:
        patch.setattr(worker, "execute", lambda plan: output_of_step)
        stop = asyncio.Event()
        async with serve(address) as scheduler:
            link = asyncio.create_task(SchedulerLink(address, worker, ModelThread()).run(stop))
            scheduler.plans.put_nowait(FIRST)
            output = await soon(scheduler.outputs.get())
            assert (output.epoch, output.step_id) == (9, 1)
            assert output.error == "the output cannot be encoded: UnicodeEncodeError"
            patch.undo()
            scheduler.plans.put_nowait(replace(FIRST, epoch=10))
            assert (await soon(scheduler.outputs.get())).error == ""
            stop.set()
            await soon(link)


async def test_a_step_that_raises_is_a_failed_step(
    worker: Worker, address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("a bug")

    stop = asyncio.Event()
    async with serve(address) as scheduler:
        link = asyncio.create_task(SchedulerLink(address, worker, ModelThread()).run(stop))
        await soon(scheduler.worker_hellos.get())
        with monkeypatch.context() as patch:
            patch.setattr(worker, "submit", fail)
            scheduler.plans.put_nowait(FIRST)
            output = await soon(scheduler.outputs.get())
        assert (output.epoch, output.step_id, output.error) == (9, 1, "RuntimeError('a bug')")
        assert "step 1 of epoch 9 raised" in caplog.text
        scheduler.plans.put_nowait(replace(FIRST, epoch=10))
        assert (await soon(scheduler.outputs.get())).error == ""
        stop.set()
        await soon(link)


async def test_a_new_stream_starts_from_an_empty_batch(worker: Worker, address: str) -> None:
    """Also with a lower epoch: the scheduler may have restarted."""
    stop = asyncio.Event()
    thread = ModelThread()
    async with serve(address) as scheduler:
        for plan in (FIRST, make_plan({0: 3}, joined=[Join(0, [5, 6, 7], [2])], epoch=1)):
            link = asyncio.create_task(SchedulerLink(address, worker, thread).run(stop))
            scheduler.plans.put_nowait(plan)
            assert (await soon(scheduler.outputs.get())).error == ""
            scheduler.plans.put_nowait(None)
            await soon(link)


async def test_an_invalid_message_ends_the_stream(worker: Worker, address: str) -> None:
    garbage = step_plan_to_pb(FIRST)
    garbage.joined.sampling.top_p[0] = -1.0
    async with serve(address) as scheduler:
        scheduler.plans.put_nowait(garbage)
        reason = await soon(SchedulerLink(address, worker, ModelThread()).run(asyncio.Event()))
        assert "top_p" in reason


async def test_failing_heartbeats_end_the_stream(
    worker: Worker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: SchedulerLink) -> None:
        raise ValueError("no pulse")

    monkeypatch.setattr("taco_worker.stream_link.HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(SchedulerLink, "_heartbeat", fail)
    async with serve(address):
        reason = await soon(SchedulerLink(address, worker, ModelThread()).run(asyncio.Event()))
        assert reason == "sending heartbeats failed: no pulse"


async def test_heartbeats_continue_during_a_step_and_stopping_drains(
    config: WorkerConfig, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taco_worker.stream_link.HEARTBEAT_SECONDS", 0.01)
    worker = GatedWorker(config)
    stop = asyncio.Event()
    async with serve(address) as scheduler:
        link = asyncio.create_task(SchedulerLink(address, worker, ModelThread()).run(stop))
        scheduler.plans.put_nowait(FIRST)
        scheduler.plans.put_nowait(make_plan({0: 1}, epoch=9, step_id=2))
        await asyncio.to_thread(worker.step_begun.wait)
        while not scheduler.heartbeats.empty():
            scheduler.heartbeats.get_nowait()
        await soon(scheduler.heartbeats.get())  # arrives while the step runs
        # No more of them: one that is sent as the stream ends fails, and gRPC reports that instead.
        monkeypatch.setattr("taco_worker.stream_link.HEARTBEAT_SECONDS", PATIENCE_SECONDS)
        scheduler.lets_leave = False
        stop.set()
        await soon(scheduler.leavings.get())
        worker.gate.set()
        assert [(await soon(scheduler.outputs.get())).step_id for _ in range(2)] == [1, 2]
        scheduler.plans.put_nowait(None)
        # gRPC reports the second one if the call that writes the last output has not returned yet.
        ends = ("the stream was closed", "INTERNAL: Internal error from Core")
        assert await soon(link) in ends


async def test_an_announced_step_waits_for_the_go_ahead(config: WorkerConfig, address: str) -> None:
    worker = GatedWorker(config)
    worker.gate.set()
    link = SchedulerLink(address, worker, ModelThread())
    async with serve(address) as scheduler:
        run = asyncio.create_task(link.run(asyncio.Event()))
        scheduler.plans.put_nowait(replace(FIRST, is_announced=True))
        announced = await soon(scheduler.announced.get())
        assert (announced.epoch, announced.step_id) == (FIRST.epoch, FIRST.step_id)
        assert not worker.step_begun.is_set()
        scheduler.plans.put_nowait(pb.WorkerCommand(go_ahead=pb.GoAhead()))
        assert (await soon(scheduler.outputs.get())).error == ""
        scheduler.plans.put_nowait(None)
        await soon(run)


async def test_a_license_change_sends_a_heartbeat_at_once(
    config: WorkerConfig,
    worker: Worker,
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taco_worker.stream_link.HEARTBEAT_SECONDS", 3600.0)
    monkeypatch.setattr("taco_license.server.app.HEARTBEAT_SECONDS", 0.05)
    [host] = gpu_names(1)
    async with serve(address) as scheduler:

        async def until_told(state: pb.LicenseState) -> pb.WorkerLicense:
            while (license_ := (await soon(scheduler.heartbeats.get())).license).state != state:
                pass
            return license_

        with LicenseServer(tmp_path / "licenses", Clock()) as server:
            license_ = LicenseConfig(
                host_id=host, address=server.address, rejection_retry_seconds=0.05
            )
            licensing = Licensing(replace(config, license=license_))
            stop = asyncio.Event()
            link = SchedulerLink(address, worker, ModelThread(), licensing=licensing)
            run = asyncio.create_task(link.run(stop))
            hello = await soon(scheduler.worker_hellos.get())
            assert hello.license.state == pb.LICENSE_ASKED
            licensing.ask()
            assert (await until_told(pb.UNLICENSED)).reason
            server.replace(signed(make_license(1)))
            await until_told(pb.LICENSED)
            stop.set()
            await soon(run)
            # A later link reports it in its hello.
            link = SchedulerLink(address, worker, ModelThread(), licensing=licensing)
            run = asyncio.create_task(link.run(stop))
            assert (await soon(scheduler.worker_hellos.get())).license.state == pb.LICENSED
            await soon(run)
            await asyncio.to_thread(licensing.close)


async def test_an_unreachable_scheduler_is_no_failure(worker: Worker, address: str) -> None:
    reason = await soon(SchedulerLink(address, worker, ModelThread()).run(asyncio.Event()))
    assert reason.startswith("UNAVAILABLE")


async def test_a_missing_certificate_is_no_failure(worker: Worker) -> None:
    tls = TlsConfig(ca_file="/no/ca.crt", cert_file="/no/worker.crt", key_file="/no/worker.key")
    link = SchedulerLink("127.0.0.1:7100", worker, ModelThread(), tls)
    assert await soon(link.run(asyncio.Event())) == (
        "cannot read /no/ca.crt: No such file or directory"
    )
    assert not link.failure  # the worker reconnects
    # A Unix socket has no TLS, even if a license server has.
    link = SchedulerLink("unix:/no/scheduler.sock", worker, ModelThread(), tls)
    assert (await soon(link.run(asyncio.Event()))).startswith("UNAVAILABLE")


RUN_WORKER = """
import sys
from taco_proto.config import ModelConfig, WorkerConfig
from taco_worker.server import run_worker
model = ModelConfig(model=sys.argv[1])
sys.exit(
    run_worker(
        WorkerConfig(
            model=model,
            scheduler=sys.argv[2],
            num_threads=int(sys.argv[3]),
            num_blocks=64,
            admin_listen=sys.argv[4] or None,
        )
    )
)
"""


def start_process(
    model: str,
    address: str,
    num_threads: int = 1,
    *,
    program: str = RUN_WORKER,
    admin_listen: str = "",
    **environment: str,
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, model, address, str(num_threads), admin_listen],
        env=os.environ | environment,
        stderr=subprocess.PIPE,
        text=True,
    )


# Its device fails in the first step.
BREAK = (
    """
from taco_proto.steps import StepOutput
from taco_worker.worker import Worker

def execute(self, plan):
    self.is_broken = True
    return StepOutput(epoch=plan.epoch, step_id=plan.step_id, error="CUDA error")

Worker.execute = execute
"""
    + RUN_WORKER
)


async def test_a_failed_device_ends_the_worker(config: WorkerConfig, address: str) -> None:
    async with serve(address) as scheduler:
        process = start_process(config.model.model, address, program=BREAK)
        scheduler.plans.put_nowait(FIRST)
        assert (await soon(scheduler.outputs.get())).error == "CUDA error"
        _, errors = await asyncio.to_thread(process.communicate, timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert "the device has failed; restart the worker" in errors


async def waits_for_a_scheduler(admin: str) -> bool:
    body = b'{"ready":false,"reason":"not attached to the scheduler"}'
    return await get(admin, "/readyz") == (503, body)


async def test_the_process_reconnects_and_drains_on_a_signal(
    config: WorkerConfig, address: str, tmp_path: Path
) -> None:
    admin = f"{tmp_path}/admin.sock"
    process = start_process(config.model.model, address, admin_listen=f"unix:{admin}")
    assert process.stderr is not None
    lines = iter(process.stderr)
    while "reconnecting" not in await asyncio.to_thread(next, lines):
        pass
    for _ in range(2):  # the second time after the scheduler has gone
        await until(lambda: waits_for_a_scheduler(admin), "a worker that says that it is alone")
        async with serve(address) as scheduler:
            await soon(scheduler.worker_hellos.get())
            scheduler.plans.put_nowait(FIRST)
            assert (await soon(scheduler.outputs.get())).error == ""
            assert (await get(admin, "/readyz"))[0] == 200
            assert b"taco:worker_attached" in (await get(admin, "/metrics"))[1]
    async with serve(address) as scheduler:
        await soon(scheduler.worker_hellos.get())
        process.send_signal(signal.SIGTERM)
        await soon(scheduler.goodbyes.get())
        _, errors = await asyncio.to_thread(process.communicate, timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert "Traceback" not in errors


# Its steps never end.
HANG = (
    """
import threading
from taco_worker.worker import Worker

Worker.execute = lambda self, plan: threading.Event().wait()
"""
    + RUN_WORKER
)


async def test_a_second_signal_ends_at_once_but_closes_the_stream(
    config: WorkerConfig, address: str
) -> None:
    async with serve(address) as scheduler:
        scheduler.lets_leave = False
        process = start_process(config.model.model, address, program=HANG)
        await soon(scheduler.worker_hellos.get())
        scheduler.plans.put_nowait(FIRST)
        process.send_signal(signal.SIGTERM)
        await soon(scheduler.leavings.get())
        process.send_signal(signal.SIGTERM)
        await soon(scheduler.goodbyes.get())
        _, errors = await asyncio.to_thread(process.communicate, timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert "Traceback" not in errors


def test_openmp_threads_sleep_by_default(tmp_path: Path) -> None:
    """OMP_WAIT_POLICY as the OpenMP library, loaded with torch, reports it."""

    def spin_count(**environment: str) -> int:
        process = start_process(
            str(tmp_path), "unix:nowhere", 1, OMP_DISPLAY_ENV="VERBOSE", **environment
        )
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        return int(errors.partition("GOMP_SPINCOUNT = '")[2].partition("'")[0])

    assert spin_count() == 0
    assert spin_count(OMP_WAIT_POLICY="ACTIVE") > 0


LOAD_FOR_EVER = """
import sys
from taco_proto.config import ModelConfig, WorkerConfig
from taco_worker import server

def load(config):
    import torch
    print("loading", flush=True)
    while True:
        torch.ones(32, 32).sum()

server.load_worker = load
sys.exit(server.run_worker(WorkerConfig(model=ModelConfig(model="none"))))
"""


def test_a_signal_ends_a_worker_that_is_still_loading() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LOAD_FOR_EVER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize("broken", ["no directory", "no weights"])
def test_an_unloadable_model_is_one_line_and_exit_code_1(
    config: WorkerConfig, tmp_path: Path, broken: str
) -> None:
    model = tmp_path / "model"
    if broken == "no weights":
        model.mkdir()
        config_file = Path(config.model.model) / "config.json"
        (model / "config.json").write_bytes(config_file.read_bytes())
    process = start_process(str(model), "unix:nowhere")
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert len(errors.splitlines()) == 1
    assert str(model) in errors


@pytest.mark.parametrize(
    ("num_threads", "environment", "message"),
    [
        (10**6, {}, "1000000 threads: this process may use"),
        (1, {"TACO_CPU_ISA": "sse2"}, "TACO_CPU_ISA=sse2 is no instruction set"),
    ],
)
def test_an_unsupported_machine_is_one_line_and_exit_code_1(
    config: WorkerConfig, num_threads: int, environment: dict[str, str], message: str
) -> None:
    process = start_process(config.model.model, "unix:nowhere", num_threads, **environment)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert len(errors.splitlines()) == 1
    assert message in errors
