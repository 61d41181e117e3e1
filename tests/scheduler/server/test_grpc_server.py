"""The scheduler over real gRPC on a Unix socket: gateways, workers, and peers that misbehave."""

import logging
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.engine_driver import make_request
from support.fake_worker import FakeWorker, generate, worker_info
from support.grpc_peers import (
    GatewayPeer,
    WorkerPeer,
    background,
    dial,
    status,
)
from support.patience import PATIENCE_SECONDS, until
from taco_proto import scheduler_pb2 as pb
from taco_proto.config import PROTOCOL_VERSION, SchedulerConfig
from taco_proto.errors import ConfigurationError
from taco_proto.licenses import LICENSE_INVALID, LICENSE_MESSAGE, LicenseState, WorkerLicense
from taco_proto.requests import FinishReason
from taco_proto.scheduler_pb2_grpc import SchedulerStub
from taco_scheduler.core.engine import Engine
from taco_scheduler.core.step_loop import StepLoop
from taco_scheduler.server.grpc_server import SchedulerServer
from taco_scheduler.server.service import SchedulerService


@asynccontextmanager
async def serving(
    tmp_path: Path, **config: Any
) -> AsyncIterator[tuple[SchedulerService, SchedulerServer]]:
    service = SchedulerService(SchedulerConfig(log_stats=False, **config))
    server = SchedulerServer(service, f"unix:{tmp_path}/scheduler.sock")
    await service.start()
    await server.start()
    try:
        yield service, server
    finally:
        await service.stop()
        await server.stop()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[SchedulerServer]:
    # The workers of these tests send no heartbeats, and the machine may be busy.
    async with serving(tmp_path, worker_timeout=120.0) as (_, server):
        yield server


@pytest.fixture
async def stub(server: SchedulerServer) -> AsyncIterator[SchedulerStub]:
    async with dial(server.address) as stub:
        yield stub


@pytest.fixture
async def worker(stub: SchedulerStub) -> AsyncIterator[WorkerPeer]:
    """A worker that serves until the test ends."""
    peer = WorkerPeer(stub, FakeWorker())
    await peer.hello()
    async with background(peer.serve()):
        yield peer


async def gateway(stub: SchedulerStub) -> GatewayPeer:
    peer = GatewayPeer(stub)
    await peer.hello()
    return peer


async def assert_alive(stub: SchedulerStub) -> None:
    """A new gateway gets right tokens, and in the end no block is held."""
    await assert_served(stub)

    async def all_are_free() -> bool:
        stats = await stub.Stats(pb.StatsRequest())
        return stats.num_free_blocks == stats.num_blocks == worker_info().num_blocks

    await until(all_are_free, "free blocks")


async def assert_served(stub: SchedulerStub) -> None:
    peer = await gateway(stub)
    request = make_request(1, [9, 8, 7], max_tokens=5, ignore_eos=True, priority=-1)
    await peer.submit(request)
    received = await peer.read_ends(1)
    assert received.tokens[1, 0] == generate([9, 8, 7], request.sampling, worker_info(), 1)
    peer.call.cancel()


async def test_two_gateways_share_a_worker(stub: SchedulerStub, worker: WorkerPeer) -> None:
    peers = [await gateway(stub), await gateway(stub)]
    requests = [
        [make_request(h, [g + 1, h + 1, 5], seed=h, max_tokens=30, n=2) for h in range(8)]
        for g in range(2)
    ]
    for peer, own in zip(peers, requests, strict=True):
        for request in own:
            await peer.submit(request)
    for g, peer in enumerate(peers):
        received = await peer.read_ends(16)
        for h, request in enumerate(requests[g]):
            expected = generate([g + 1, h + 1, 5], request.sampling, worker_info(), h)
            assert received.tokens[h, 0] == expected
    assert peers[0].models[0].protocol_version == PROTOCOL_VERSION
    await assert_alive(stub)


async def test_requests_wait_for_a_worker_and_survive_its_loss(stub: SchedulerStub) -> None:
    peer = await gateway(stub)
    requests = [make_request(h, [h + 1] * 9, seed=h, max_tokens=40) for h in range(6)]
    for request in requests:
        await peer.submit(request)
    await peer.read_until(lambda _: bool(peer.models))
    assert not peer.models[0].ready
    first = WorkerPeer(stub, FakeWorker())
    await first.hello()
    await first.serve(num_steps=5)
    first.call.cancel()  # as if it was killed: no goodbye
    second = WorkerPeer(stub, FakeWorker(worker_info(name="replacement")))
    await second.hello()
    async with background(second.serve()):
        received = await peer.read_ends(len(requests))
    for h, request in enumerate(requests):
        expected = generate([h + 1] * 9, request.sampling, worker_info(), h)
        assert received.tokens[h, 0] == expected
    assert peer.models[-1].ready


async def test_a_disconnect_frees_the_blocks(stub: SchedulerStub, worker: WorkerPeer) -> None:
    leaver = await gateway(stub)
    for handle in range(5):
        await leaver.submit(make_request(handle, [3] * 20, max_tokens=100, ignore_eos=True))
    await leaver.read_until(lambda got: len(got.tokens) == 5)
    leaver.call.cancel()
    await assert_alive(stub)


async def test_cancel_ends_one_sequence_or_all(stub: SchedulerStub, worker: WorkerPeer) -> None:
    peer = await gateway(stub)
    long: dict[str, Any] = {"max_tokens": 100, "ignore_eos": True}
    await peer.submit(make_request(1, [3] * 5, n=2, **long))
    await peer.submit(make_request(2, [4] * 5, **long))
    await peer.read_until(lambda got: len(got.tokens) == 3)
    cancel = pb.Cancel(handles=[1, 2, 77], indexes=[1, 0, 0])
    await peer.call.write(pb.GatewayMessage(cancel=cancel))
    received = await peer.read_ends(3)
    # What had ended before the cancel came is not aborted.
    assert received.reasons[1, 0] is FinishReason.LENGTH
    assert received.reasons[2, 0] in (FinishReason.ABORTED, FinishReason.LENGTH)


# --------------------------------------------------------------- misbehaviour


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([pb.GatewayMessage()], grpc.StatusCode.INVALID_ARGUMENT),
        ([pb.GatewayMessage(cancel=pb.Cancel())], grpc.StatusCode.INVALID_ARGUMENT),
        (
            [pb.GatewayMessage(hello=pb.GatewayHello(protocol_version=99))],
            grpc.StatusCode.FAILED_PRECONDITION,
        ),
        (
            [
                pb.GatewayMessage(hello=pb.GatewayHello(protocol_version=PROTOCOL_VERSION)),
                pb.GatewayMessage(cancel=pb.Cancel(handles=[1, 2], indexes=[1])),
            ],
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ],
)
async def test_a_confused_gateway_loses_its_stream(
    stub: SchedulerStub,
    worker: WorkerPeer,
    messages: list[pb.GatewayMessage],
    code: grpc.StatusCode,
) -> None:
    peer = GatewayPeer(stub)
    for message in messages:
        await peer.call.write(message)
    assert await status(peer.call) is code
    await assert_alive(stub)


GATEWAY_HELLO = pb.GatewayMessage(hello=pb.GatewayHello(protocol_version=PROTOCOL_VERSION))


@pytest.mark.parametrize(
    ("method", "hello"),
    [
        ("Generate", b""),
        ("Generate", GATEWAY_HELLO.SerializeToString()),
        ("Attach", b""),
        ("AttachDrafter", b""),
    ],
)
async def test_bytes_that_are_no_message_end_the_stream(
    server: SchedulerServer,
    stub: SchedulerStub,
    worker: WorkerPeer,
    caplog: pytest.LogCaptureFixture,
    method: str,
    hello: bytes,
) -> None:
    async with grpc.aio.insecure_channel(server.address) as channel:
        call: Any = channel.stream_stream(f"/taco.v1.Scheduler/{method}")()
        for data in (hello, b"\xff" * 10) if hello else (b"\xff" * 10,):
            await call.write(data)
        assert await status(call) is grpc.StatusCode.INVALID_ARGUMENT
    assert not [record for record in caplog.records if record.exc_info]
    await assert_alive(stub)


async def test_bad_requests_are_refused_alone(stub: SchedulerStub, worker: WorkerPeer) -> None:
    peer = await gateway(stub)
    good = pb.Sampling(n=1, temperature=1, top_p=1, repetition_penalty=1, max_tokens=4)
    submits = {
        1: pb.Submit(handle=1, token_ids=b"abc", sampling=good),
        2: pb.Submit(handle=2, token_ids=b"", sampling=good),
        3: pb.Submit(handle=3, token_ids=b"\x00\x10\x00\x00", sampling=good),
        4: pb.Submit(handle=4, token_ids=b"\xff\xff\xff\xff", sampling=good),
        5: pb.Submit(handle=5, token_ids=b"\1\0\0\0", sampling=pb.Sampling(n=0)),
        6: pb.Submit(handle=6, token_ids=b"\1\0\0\0" * 500, sampling=good),
        7: pb.Submit(handle=7, token_ids=b"\1\0\0\0", sampling=pb.Sampling(n=10**6)),
    }
    skewed = pb.Sampling()
    skewed.CopyFrom(good)
    skewed.logit_bias_token_ids.extend([1, 2])
    submits[8] = pb.Submit(handle=8, token_ids=b"\1\0\0\0", sampling=skewed)
    for submit in submits.values():
        await peer.call.write(pb.GatewayMessage(submit=submit))
    received = await peer.read_ends(len(submits))
    assert {handle: code for handle, (code, _) in received.errors.items()} == dict.fromkeys(
        submits, 400
    )
    await assert_alive(stub)


async def test_a_doubled_handle_is_a_conflict(stub: SchedulerStub, worker: WorkerPeer) -> None:
    peer = await gateway(stub)
    await peer.submit(make_request(1, [3] * 5, max_tokens=100, ignore_eos=True))
    await peer.submit(make_request(1, [4] * 5))
    received = await peer.read_until(lambda got: bool(got.errors))
    assert received.errors[1][0] == 409


@pytest.mark.parametrize(
    "spoil",
    [
        lambda output: output.slots.append(63),
        lambda output: output.token_ids.append(1),
        lambda output: output.token_ids.__setitem__(0, 2**32 - 1),
        lambda output: output.slots.__setitem__(0, 2**31 - 1),
        lambda output: output.token_ids.__setitem__(0, 2**31 - 1),
        lambda output: setattr(output, "step_id", 2**63),
        lambda output: setattr(output.logprobs, "num_entries", b"\7\0\0\0"),
        lambda output: setattr(output.logprobs, "num_entries", b"\7"),
        lambda output: output.ClearField("slots"),
    ],
)
async def test_a_worker_that_sends_garbage_is_replaced(stub: SchedulerStub, spoil: object) -> None:
    peer = await gateway(stub)
    await peer.submit(make_request(1, [3, 4, 5], max_tokens=20))
    liar = WorkerPeer(stub, FakeWorker())
    await liar.hello()
    await liar.call.read()
    output = pb.StepOutput(epoch=1, step_id=1, slots=[0], token_ids=[1])
    spoil(output)  # type: ignore[operator]
    await liar.call.write(pb.WorkerMessage(output=output))
    assert await status(liar.call) is grpc.StatusCode.INVALID_ARGUMENT

    honest = WorkerPeer(stub, FakeWorker())
    await honest.hello()
    async with background(honest.serve()):
        received = await peer.read_ends(1)
        expected = generate(
            [3, 4, 5], make_request(1, [1], max_tokens=20).sampling, worker_info(), 1
        )
        assert received.tokens[1, 0] == expected
        await assert_alive(stub)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"block_size": 0}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"num_blocks": 2**31}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"max_num_seqs": 0}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"model": "a\nb"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"model": "m" * 1025}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"eos_token_ids": tuple(range(1025))}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_an_impossible_worker_is_turned_away(
    stub: SchedulerStub, change: dict[str, object], code: grpc.StatusCode
) -> None:
    peer = WorkerPeer(stub, FakeWorker())
    peer.worker.info = replace(peer.worker.info, **change)  # type: ignore[arg-type]
    await peer.hello()
    assert await status(peer.call) is code


@pytest.mark.parametrize("name", ["a\n00:00 forged", "n" * 2_000_000], ids=["line", "long"])
async def test_names_of_peers_forge_no_line_of_the_log(
    stub: SchedulerStub, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    worker = WorkerPeer(stub, FakeWorker(worker_info(name=name)))
    await worker.hello()
    hello = pb.GatewayHello(protocol_version=PROTOCOL_VERSION, name=name)
    gateway_call = stub.Generate()
    await gateway_call.write(pb.GatewayMessage(hello=hello))
    await gateway_call.read()

    async def has_attached() -> bool:
        return "attached: fake-model" in caplog.text

    await until(has_attached, "the worker")
    worker.call.cancel()
    gateway_call.cancel()
    messages = [record.getMessage() for record in caplog.records]
    assert any(f"client {name[0]}" in message for message in messages)
    assert all("\n" not in message and len(message) < 1000 for message in messages)


async def test_gateways_hear_of_a_shutdown_at_once_and_come_in_vain(tmp_path: Path) -> None:
    async with serving(tmp_path) as (service, server), dial(server.address) as stub:
        peer = await gateway(stub)
        await peer.call.read()
        await service.drain(PATIENCE_SECONDS)
        assert (await peer.call.read()).model.draining
        late = await gateway(stub)
        assert await status(late.call) is grpc.StatusCode.UNAVAILABLE
        assert await late.call.details() == "the scheduler is shutting down"
        peer.call.cancel()


@pytest.mark.parametrize("rpc", ["Generate", "Attach"])
async def test_a_peer_that_never_says_hello_is_sent_away(
    stub: SchedulerStub, monkeypatch: pytest.MonkeyPatch, rpc: str
) -> None:
    monkeypatch.setattr("taco_scheduler.server.stream_protocol.HELLO_SECONDS", 0.05)
    call = getattr(stub, rpc)()
    assert await status(call) is grpc.StatusCode.INVALID_ARGUMENT


async def test_protocol_versions_must_match(stub: SchedulerStub) -> None:
    peer = WorkerPeer(stub, FakeWorker())
    await peer.hello(version=PROTOCOL_VERSION + 1)
    assert await status(peer.call) is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_worker_of_another_model_is_refused(
    stub: SchedulerStub, worker: WorkerPeer
) -> None:
    await assert_alive(stub)
    other = WorkerPeer(stub, FakeWorker(worker_info(name="other", vocab_size=65)))
    await other.hello()
    assert await status(other.call) is grpc.StatusCode.FAILED_PRECONDITION
    assert "vocab_size" in await other.call.details()
    await assert_alive(stub)


async def test_a_worker_is_lost_after_the_heartbeat_timeout(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, worker_timeout=0.2) as (service, server),
        dial(server.address) as stub,
    ):
        peer = await gateway(stub)
        await peer.submit(make_request(1, [3, 4, 5], max_tokens=20))
        silent = WorkerPeer(stub, FakeWorker())
        await silent.hello()
        assert await status(silent.call) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "silent for 0.2 s" in await silent.call.details()

        async def waits() -> bool:
            return (service.num_workers, service.engine.num_waiting) == (0, 1)

        await until(waits, "a request that waits for another worker")


async def test_a_request_whose_admission_fails_gets_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    async with serving(tmp_path) as (_, server), dial(server.address) as stub:
        peer = await gateway(stub)
        monkeypatch.setattr(Engine, "submit", fail)
        await peer.submit(make_request(1, [3, 4, 5]))
        received = await peer.read_ends(1)
    assert received.errors == {1: (500, "the scheduler failed to admit the request")}


async def test_a_message_that_the_engine_cannot_take_ends_the_workers_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    async with serving(tmp_path) as (service, server), dial(server.address) as stub:
        monkeypatch.setattr(StepLoop, "take_store_report", fail)
        peer = WorkerPeer(stub, FakeWorker())
        await peer.hello()
        await peer.call.write(pb.WorkerMessage(store_report=pb.StoreReport(is_complete=True)))
        # Final for no peer: a draft worker that gets INVALID_ARGUMENT does not dial again.
        assert await status(peer.call) is grpc.StatusCode.INTERNAL
        assert service.num_workers == 0


async def test_a_worker_that_leaves_goes_when_its_requests_have_ended(
    stub: SchedulerStub, worker: WorkerPeer, caplog: pytest.LogCaptureFixture
) -> None:
    peer = await gateway(stub)
    await peer.read_until(lambda _: any(model.ready for model in peer.models))
    worker.wants_to_leave = True
    await peer.submit(make_request(1, [3, 4, 5], max_tokens=100, ignore_eos=True))
    await peer.read_until(lambda got: not peer.models[-1].ready)
    await peer.submit(make_request(2, [5, 4, 3], max_tokens=9))
    received = await peer.read_ends(1)
    assert len(received.tokens[1, 0]) == 100
    assert await worker.ended() is grpc.StatusCode.OK
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    other = WorkerPeer(stub, FakeWorker())
    await other.hello()
    async with background(other.serve()):
        received = await peer.read_ends(2)
    assert received.tokens[2, 0] == generate(
        [5, 4, 3], make_request(2, [1], max_tokens=9).sampling, worker_info(), 1
    )


async def test_a_worker_leaves_at_once_when_its_disk_has_all_there_is(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, worker_timeout=120.0, worker_drain_timeout=3600.0) as (_, server),
        dial(server.address) as stub,
    ):
        info = worker_info(num_host_blocks=8, num_disk_blocks=8)
        leaver = WorkerPeer(stub, FakeWorker(info))
        await leaver.hello()
        assert (await leaver.call.read()).HasField("store")
        report = pb.StoreReport(is_complete=True)
        await leaver.call.write(pb.WorkerMessage(store_report=report))
        await leaver.call.write(pb.WorkerMessage(leaving=pb.Leaving()))
        assert await status(leaver.call) is grpc.StatusCode.OK


async def test_a_worker_is_lost_after_the_step_timeout(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, step_timeout=0.2) as (service, server),
        dial(server.address) as stub,
    ):
        hung = WorkerPeer(stub, FakeWorker())
        await hung.hello()
        peer = await gateway(stub)
        await peer.submit(make_request(1, [3, 4, 5], max_tokens=20))
        assert await status(hung.call) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert (service.num_workers, service.engine.num_waiting) == (0, 1)


async def test_an_output_of_an_earlier_life_ends_the_stream_as_aborted(
    stub: SchedulerStub, worker: WorkerPeer
) -> None:
    await assert_alive(stub)
    ghost = WorkerPeer(stub, FakeWorker(worker_info(name="ghost")))
    await ghost.hello()
    await ghost.call.write(pb.WorkerMessage(output=pb.StepOutput(epoch=1, step_id=1)))
    assert await status(ghost.call) is grpc.StatusCode.ABORTED
    await assert_alive(stub)


async def test_metrics_tell_workers_apart(stub: SchedulerStub, worker: WorkerPeer) -> None:
    other = WorkerPeer(stub, FakeWorker(worker_info(num_blocks=36)))
    await other.hello()
    async with background(other.serve()):
        await wait_for_workers(stub, 2)
        stats = await stub.Stats(pb.StatsRequest())
    assert stats.num_blocks == stats.num_free_blocks == 64 + 36
    text = stats.prometheus.decode()
    assert 'taco:workers{model_name="fake-model"} 2.0' in text
    for name in ("running", "waiting", "load", "kv_usage"):
        for label in ("fake", "fake-2"):
            line = f'taco:worker_{name}{{model_name="fake-model",worker="{label}"}} 0.0'
            assert line in text


async def wait_for_workers(stub: SchedulerStub, count: int) -> None:
    async def are_there() -> bool:
        return (await stub.Stats(pb.StatsRequest())).num_workers == count

    await until(are_there, f"{count} workers")


@pytest.mark.slow
async def test_a_gateway_that_never_reads_does_not_delay_others(
    stub: SchedulerStub, worker: WorkerPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taco_scheduler.state.output_buffer.MAX_BUFFERED_VALUES", 2_000)
    deaf = await gateway(stub)
    for handle in range(3000):
        await deaf.submit(make_request(handle, [handle % 60 + 1], max_tokens=120, ignore_eos=True))
    await assert_served(stub)


async def test_garbage_bytes_and_oversize_end_only_their_call(
    server: SchedulerServer, stub: SchedulerStub, worker: WorkerPeer
) -> None:
    async with grpc.aio.insecure_channel(
        server.address, options=[("grpc.max_send_message_length", -1)]
    ) as channel:
        for payload in (b"\xff" * 100, bytes(65 * 2**20)):
            call: grpc.aio.StreamStreamCall = channel.stream_stream("/taco.v1.Scheduler/Generate")()
            await call.write(payload)
            assert await status(call) is not grpc.StatusCode.OK
    await assert_alive(stub)


# -------------------------------------------------------------------- address


async def test_the_socket_is_private_and_goes_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.sock"
    service = SchedulerService(SchedulerConfig(log_stats=False))
    server = SchedulerServer(service, f"unix:{path}")
    await server.start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(ConfigurationError, match="in use"):
        await SchedulerServer(service, f"unix:{path}").start()
    await server.stop()
    assert not path.exists()


async def test_a_port_in_use_is_one_line(server: SchedulerServer) -> None:
    service = SchedulerService(SchedulerConfig(log_stats=False))
    holder = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    port = holder.add_insecure_port("127.0.0.1:0")
    await holder.start()
    with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}"):
        await SchedulerServer(service, f"127.0.0.1:{port}").start()
    await holder.stop(None)


async def test_stats_hold_the_metrics_that_dashboards_read(
    stub: SchedulerStub, worker: WorkerPeer
) -> None:
    await assert_alive(stub)
    stats = await stub.Stats(pb.StatsRequest())
    text = stats.prometheus.decode()
    assert 'vllm:generation_tokens_total{model_name="fake-model"} 5.0' in text
    for name in ("num_requests_running", "kv_cache_usage_perc", "num_preemptions_total"):
        assert f"vllm:{name}{{" in text
    assert "vllm:request_queue_time_seconds_bucket" in text
    assert stats.num_workers == 1


async def test_a_worker_says_at_once_whether_it_may_take_new_requests(stub: SchedulerStub) -> None:
    async def tell(state: pb.LicenseState, reason: str = "") -> None:
        heartbeat = pb.Heartbeat(license=pb.WorkerLicense(state=state, reason=reason))
        await worker.call.write(pb.WorkerMessage(heartbeat=heartbeat))

    async def until_model(problem: str, *, is_ready: bool) -> None:
        def is_so(_: object) -> bool:
            model = peer.models[-1] if peer.models else pb.ModelInfo()
            return (model.license_problem, model.ready) == (problem, is_ready)

        await peer.read_until(is_so)

    unlicensed = WorkerLicense(LicenseState.MISSING, "expired")
    worker = WorkerPeer(stub, FakeWorker(worker_info(license=unlicensed)))
    await worker.hello()
    peer = await gateway(stub)
    await until_model("expired", is_ready=False)
    await tell(pb.LICENSED)
    await until_model("", is_ready=True)
    request = make_request(1, [4, 5, 6], max_tokens=20, ignore_eos=True)
    await peer.submit(request)
    await worker.serve(num_steps=3)
    await tell(pb.UNLICENSED, "not_licensed")
    await until_model("not_licensed", is_ready=False)
    await peer.submit(make_request(2, [4, 5, 6]))
    async with background(worker.serve()):
        received = await peer.read_ends(2)
        assert received.errors == {2: (503, LICENSE_MESSAGE)}
        assert received.reasons_of_errors == {2: LICENSE_INVALID}
        assert received.tokens[1, 0] == generate([4, 5, 6], request.sampling, worker_info(), 1)
        figures = (await stub.Stats(pb.StatsRequest())).prometheus.decode()
        assert 'taco:worker_licensed{model_name="fake-model",worker="fake"} 0.0' in figures
        assert 'taco:rejections_total{model_name="fake-model",reason="license"} 1.0' in figures
        await tell(pb.LICENSE_ASKED, "asked again")
        await until_model("", is_ready=False)
