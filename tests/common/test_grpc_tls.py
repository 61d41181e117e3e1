"""gRPC over mutual TLS: who gets in, what they may call, and certificates that are renewed."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from support.certificates import EXPIRED, LIFETIME, make_certificates, tls_config
from support.patience import PATIENCE_SECONDS
from taco_common.grpc_tls import add_port, open_channel
from taco_common.peer_roles import RoleInterceptor, peer_roles
from taco_common.tls import Role
from taco_llm.certificates import issue
from taco_proto.config import TlsConfig

Context = grpc.aio.ServicerContext[Any, Any]
ALLOWED = {
    "test": frozenset({Role.WORKER, Role.CLIENT}),
    "test/ForClients": frozenset({Role.CLIENT}),
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_certificates(tmp_path / "tls", Role.SCHEDULER, Role.WORKER, Role.CLIENT)


async def say_roles(request: bytes, context: Context) -> bytes:
    return ",".join(sorted(peer_roles(context))).encode()


async def count(request: bytes, context: Context) -> AsyncIterator[bytes]:
    for number in range(3):
        yield str(number).encode()


async def echo(requests: AsyncIterator[bytes], context: Context) -> None:
    async for request in requests:
        await context.write(request)


HANDLERS: dict[str, Any] = {
    "Roles": grpc.unary_unary_rpc_method_handler(say_roles),
    "ForClients": grpc.unary_unary_rpc_method_handler(say_roles),
    "Count": grpc.unary_stream_rpc_method_handler(count),
    "Echo": grpc.stream_stream_rpc_method_handler(echo),
}


@asynccontextmanager
async def serving(tls: TlsConfig) -> AsyncIterator[str]:
    """The address of a server with two services, of which no role may call the second."""
    server = grpc.aio.server(interceptors=[RoleInterceptor(ALLOWED)])
    for service in ("test", "forgotten"):
        handler = grpc.method_handlers_generic_handler(service, HANDLERS)
        server.add_generic_rpc_handlers((handler,))
    port = add_port(server, "127.0.0.1:0", tls)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def call(
    address: str,
    tls: TlsConfig | None,
    method: str = "test/Roles",
    server: Role = Role.SCHEDULER,
) -> str:
    """The answer, or the status of the refusal."""
    # Connections of other calls are not to be used again.
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with open_channel(address, options, tls, server) as channel:
        try:
            unary: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
            unary = channel.unary_unary(f"/{method}")
            answer = await unary(b"", timeout=PATIENCE_SECONDS)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return answer.decode()


async def test_a_caller_without_a_valid_certificate_is_rejected_alone(
    directory: Path, tmp_path: Path
) -> None:
    other = make_certificates(tmp_path / "other", Role.WORKER)
    worker = tls_config(directory, Role.WORKER)
    async with (
        serving(tls_config(directory, Role.SCHEDULER)) as address,
        open_channel(address, (), worker, Role.SCHEDULER) as channel,
    ):
        stream: grpc.aio.StreamStreamCall = channel.stream_stream("/test/Echo")()
        await stream.write(b"before")
        assert await stream.read() == b"before"
        assert await call(address, worker) == "worker"
        assert await call(address, None) == "UNAVAILABLE"
        assert await call(address, tls_config(other, Role.WORKER, authority=directory)) == (
            "UNAVAILABLE"
        )
        issue(directory, Role.WORKER, EXPIRED)
        assert await call(address, worker) == "UNAVAILABLE"
        nameless = grpc.ssl_channel_credentials((directory / "ca.crt").read_bytes())
        options = (("grpc.ssl_target_name_override", Role.SCHEDULER.dns_name),)
        async with grpc.aio.secure_channel(address, nameless, options=options) as without:
            refused: grpc.aio.StreamStreamCall = without.stream_stream("/test/Echo")()
            assert await refused.code() == grpc.StatusCode.UNAVAILABLE
        await stream.write(b"after")
        assert await stream.read() == b"after"


async def test_a_server_must_prove_its_role(directory: Path, tmp_path: Path) -> None:
    worker = tls_config(directory, Role.WORKER)
    async with serving(tls_config(directory, Role.WORKER)) as impostor:
        assert await call(impostor, worker) == "UNAVAILABLE"
    other = make_certificates(tmp_path / "other", Role.SCHEDULER)
    async with serving(tls_config(other, Role.SCHEDULER, authority=directory)) as impostor:
        assert await call(impostor, worker) == "UNAVAILABLE"


async def test_each_method_is_for_its_roles(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker, client = tls_config(directory, Role.WORKER), tls_config(directory, Role.CLIENT)
    async with serving(tls_config(directory, Role.SCHEDULER)) as address:
        assert await call(address, client, "test/ForClients") == "client"
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                assert await call(address, worker, "test/ForClients") == "PERMISSION_DENIED"
        assert [record.message.partition(": ")[2] for record in caplog.records] == [
            "a certificate for worker may not call test/ForClients"
        ]
        assert await call(address, worker, "forgotten/Roles") == "PERMISSION_DENIED"
        assert await call(address, worker, "test/Nothing") == "UNIMPLEMENTED"
        async with open_channel(address, (), worker, Role.SCHEDULER) as channel:
            counting: grpc.aio.UnaryStreamMultiCallable[bytes, bytes]
            counting = channel.unary_stream("/test/Count")
            assert [answer async for answer in counting(b"")] == [b"0", b"1", b"2"]
        own = tls_config(directory, Role.SCHEDULER)
        async with open_channel(address, (), own, Role.SCHEDULER) as channel:
            counting = channel.unary_stream("/test/Count")
            assert await counting(b"").code() == grpc.StatusCode.PERMISSION_DENIED
            echoing: grpc.aio.StreamStreamCall = channel.stream_stream("/test/Echo")()
            assert await echoing.code() == grpc.StatusCode.PERMISSION_DENIED


async def test_renewed_files_hold_from_the_next_link(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = tls_config(directory, Role.WORKER)
    async with serving(tls_config(directory, Role.SCHEDULER)) as address:
        issue(directory, Role.SCHEDULER, EXPIRED)
        assert await call(address, worker) == "UNAVAILABLE"
        issue(directory, Role.SCHEDULER, LIFETIME)
        assert await call(address, worker) == "worker"

        # Files that cannot be used: the ones before hold.
        good = (directory / "scheduler.key").read_bytes()
        (directory / "scheduler.key").write_bytes((directory / "client.key").read_bytes())
        assert await call(address, worker) == "worker"
        (directory / "scheduler.key").unlink()
        assert await call(address, worker) == "worker"
        assert "the old certificate stays in use: cannot read" in caplog.text
        (directory / "scheduler.key").write_bytes(good)

        # All is new, the authority too.
        new = make_certificates(directory.parent / "new", *Role)
        for file in new.iterdir():
            file.replace(directory / file.name)
        assert await call(address, worker) == "worker"
