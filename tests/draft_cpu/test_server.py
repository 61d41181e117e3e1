import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import pytest

from support.checkpoints import make_checkpoint
from support.drafting import Ask, draft_request, drafts_of
from support.fake_scheduler import REFUSAL, serve, soon
from support.patience import PATIENCE_SECONDS
from taco_draft.draft_runner import DraftRunner
from taco_draft.scheduler_link import DraftSchedulerLink
from taco_proto.config import PROTOCOL_VERSION, DrafterConfig, ModelConfig
from taco_proto.drafts import DraftReply, DraftRequest
from taco_worker.model_thread import ModelThread

PROMPT = [5, 6, 7]


class GatedRunner(DraftRunner):
    """A runner whose drafts wait until the test releases them."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.gate = threading.Event()
        self.begun = threading.Event()

    def draft(self, request: DraftRequest) -> DraftReply:
        self.begun.set()
        self.gate.wait()
        return super().draft(request)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> DrafterConfig:
    checkpoint = make_checkpoint(tmp_path_factory.mktemp("llama"))
    return DrafterConfig(model=ModelConfig(model=str(checkpoint)), num_threads=1, num_blocks=16)


@pytest.fixture(scope="module")
def runner(config: DrafterConfig) -> DraftRunner:
    return DraftRunner(config)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/scheduler.sock"


async def test_hello_then_requests_down_and_drafts_up(runner: DraftRunner, address: str) -> None:
    first = draft_request(Ask(1, 0, PROMPT, 3))
    runner.reset()
    expected = drafts_of(runner.draft(first))[1]
    stop = asyncio.Event()
    async with serve(address) as scheduler:
        link = asyncio.create_task(DraftSchedulerLink(address, runner, ModelThread()).run(stop))
        hello = await soon(scheduler.drafter_hellos.get())
        assert hello.protocol_version == PROTOCOL_VERSION
        assert (hello.name, hello.vocab_size, hello.max_model_len) == ("drafter-0", 384, 256)
        scheduler.requests.put_nowait(first)
        assert drafts_of(await soon(scheduler.replies.get())) == {1: expected}
        scheduler.requests.put_nowait(draft_request(Ask(1, 3, expected[:1], 2), request_id=2))
        reply = await soon(scheduler.replies.get())
        assert reply.request_id == 2
        assert drafts_of(reply) == {1: expected[1:]}
        stop.set()
        assert await soon(link) == "the stream was closed"
        await soon(scheduler.goodbyes.get())


async def test_a_new_stream_starts_without_sequences(runner: DraftRunner, address: str) -> None:
    thread = ModelThread()
    async with serve(address) as scheduler:
        for row, answered in ((Ask(1, 0, PROMPT, 1), {1}), (Ask(1, 3, [8], 1), set())):
            link = asyncio.create_task(
                DraftSchedulerLink(address, runner, thread).run(asyncio.Event())
            )
            scheduler.requests.put_nowait(draft_request(row))
            assert set(drafts_of(await soon(scheduler.replies.get()))) == answered
            scheduler.requests.put_nowait(None)
            await soon(link)


async def test_heartbeats_continue_while_drafting_and_stop_finishes_the_request(
    config: DrafterConfig, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taco_worker.stream_link.HEARTBEAT_SECONDS", 0.01)
    runner = GatedRunner(config)
    stop = asyncio.Event()
    async with serve(address) as scheduler:
        link = asyncio.create_task(DraftSchedulerLink(address, runner, ModelThread()).run(stop))
        scheduler.requests.put_nowait(draft_request(Ask(1, 0, PROMPT, 1)))
        await asyncio.to_thread(runner.begun.wait)
        while not scheduler.heartbeats.empty():
            scheduler.heartbeats.get_nowait()
        await soon(scheduler.heartbeats.get())  # while it drafts
        stop.set()
        for _ in range(3):  # it has heard, and waits for the drafts
            await soon(scheduler.heartbeats.get())
        runner.gate.set()
        await soon(link)
        await soon(scheduler.goodbyes.get())
        assert set(drafts_of(scheduler.replies.get_nowait())) == {1}


async def test_a_request_that_fails_ends_the_link_for_good(
    runner: DraftRunner, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    request = draft_request(Ask(1, 0, PROMPT, 1))
    request.num_tokens[0] = 9
    async with serve(address) as scheduler:
        link = DraftSchedulerLink(address, runner, ModelThread())
        scheduler.requests.put_nowait(request)
        await soon(link.run(asyncio.Event()))
        assert "too few or too many tokens" in link.failure
        assert drafts_of(await soon(scheduler.replies.get())) == {}


@pytest.mark.parametrize(
    ("code", "is_final"),
    [
        (grpc.StatusCode.FAILED_PRECONDITION, True),
        (grpc.StatusCode.INVALID_ARGUMENT, True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, False),
    ],
)
async def test_final_rejections_are_not_retried(
    runner: DraftRunner, address: str, code: grpc.StatusCode, is_final: bool
) -> None:
    async with serve(address) as scheduler:
        link = DraftSchedulerLink(address, runner, ModelThread())
        scheduler.requests.put_nowait(code)
        reason = await soon(link.run(asyncio.Event()))
        assert reason == f"{code.name}: {REFUSAL}"
        refusal = f"the scheduler at {address} rejects it: {REFUSAL}"
        assert link.failure == (refusal if is_final else "")


RUN_DRAFT_WORKER = """
import sys
from taco_draft.server import run_draft_worker
from taco_proto.config import DrafterConfig, ModelConfig
model = ModelConfig(model=sys.argv[1])
sys.exit(
    run_draft_worker(
        DrafterConfig(model=model, scheduler=sys.argv[2], num_threads=1, num_blocks=16)
    )
)
"""


def start_process(model: str, address: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RUN_DRAFT_WORKER, model, address],
        stderr=subprocess.PIPE,
        text=True,
    )


async def test_the_process_reconnects_until_the_scheduler_starts_and_exits_on_sigterm(
    config: DrafterConfig, address: str
) -> None:
    process = start_process(config.model.model, address)
    assert process.stderr is not None
    lines = iter(process.stderr)
    while "reconnecting" not in await asyncio.to_thread(next, lines):
        pass
    async with serve(address) as scheduler:
        await soon(scheduler.drafter_hellos.get())
        scheduler.requests.put_nowait(draft_request(Ask(1, 0, PROMPT, 3)))
        assert set(drafts_of(await soon(scheduler.replies.get()))) == {1}
        process.send_signal(signal.SIGTERM)
        await soon(scheduler.goodbyes.get())
        _, errors = await asyncio.to_thread(process.communicate, timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert "Traceback" not in errors


async def test_a_rejected_process_exits_with_one_line(config: DrafterConfig, address: str) -> None:
    async with serve(address) as scheduler:
        process = start_process(config.model.model, address)
        scheduler.requests.put_nowait(grpc.StatusCode.FAILED_PRECONDITION)
        _, errors = await asyncio.to_thread(process.communicate, timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert [line for line in errors.splitlines() if "ERROR" in line] == errors.splitlines()[-1:]
    assert errors.endswith(f"rejects it: {REFUSAL}\n")


def test_a_model_that_cannot_be_loaded_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    process = start_process(str(tmp_path / "model"), "unix:nowhere")
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert len(errors.splitlines()) == 1
    assert "model" in errors
