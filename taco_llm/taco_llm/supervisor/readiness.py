"""Readiness: whether the gateway's address is free, and whether the model is served."""

import asyncio
import errno
import re
import socket
import ssl
from collections.abc import Collection
from contextlib import closing

from taco_common.listener import host_port
from taco_common.tls import Role
from taco_proto.config import GatewayConfig
from taco_proto.errors import ConfigurationError

POLL_SECONDS = 0.05
ANSWER_SECONDS = 5.0

# Names of attached workers in the scheduler's metrics. Other workers may be attached as well.
_ATTACHED = re.compile(rb'^taco:worker_licensed\{.*worker="([^"]*)"', re.MULTILINE)
_ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def url(config: GatewayConfig) -> str:
    """The address at which clients reach the OpenAI API."""
    if config.uds is not None:
        return f"unix:{config.uds}"
    scheme = "http" if config.ssl_certfile is None else "https"
    host = "localhost" if config.host in _ANY_HOST else config.host
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}:{config.port}/v1"


def check_address_free(config: GatewayConfig) -> None:
    """Checks that the gateway can listen on its address, before any process starts.

    Raises:
        ConfigurationError: the address is in use, or this machine does not have it.
    """
    if config.uds is not None:
        return
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            config.host or None, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with closing(socket.socket(family, kind)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1)
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            reason += "; stop the process that uses it, or give another port with --port"
        raise ConfigurationError(
            f"cannot listen on {host_port(config.host, config.port)}: {reason}"
        ) from None


async def wait_until_ready(config: GatewayConfig, workers: Collection[str] = ()) -> None:
    """Waits until the gateway reports that the model is served and all `workers` are attached."""
    while True:
        if await _is_ready(config, workers):
            return
        await asyncio.sleep(POLL_SECONDS)


async def _is_ready(config: GatewayConfig, workers: Collection[str]) -> bool:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            if config.ssl_cert_reqs == ssl.CERT_REQUIRED:
                return await _accepts_connections(config) and await _has_workers(config, workers)
            if await _health(config) != 200:
                return False
            return not workers or await _has_workers(config, workers)
    except (OSError, TimeoutError):
        return False


async def _health(config: GatewayConfig) -> int:
    """The HTTP status of GET /health; 0 if the answer is not HTTP."""
    reader, writer = await _connect(config)
    try:
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        await writer.drain()
        words = (await reader.readline()).split()
        return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    finally:
        writer.close()


async def _accepts_connections(config: GatewayConfig) -> bool:
    """Whether the gateway accepts connections. Used if it requires client certificates, which the
    supervisor does not have.
    """
    try:
        _, writer = await _connect(config)
    except ssl.SSLError:
        return True
    writer.close()
    return True


async def _has_workers(config: GatewayConfig, workers: Collection[str]) -> bool:
    """Whether at least one worker is attached to the scheduler, and all `workers` are."""
    import grpc.aio  # slow to import, and rarely needed

    from taco_common.grpc_tls import open_channel
    from taco_proto.scheduler_pb2 import StatsRequest
    from taco_proto.scheduler_pb2_grpc import SchedulerStub

    async with open_channel(config.scheduler, (), config.tls, Role.SCHEDULER) as channel:
        try:
            stats = await SchedulerStub(channel).Stats(StatsRequest())
        except grpc.aio.AioRpcError:
            return False
    attached = {name.decode() for name in _ATTACHED.findall(stats.prometheus)}
    return stats.num_workers > 0 and attached.issuperset(workers)


async def _connect(config: GatewayConfig) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if config.uds is not None:
        return await asyncio.open_unix_connection(config.uds)
    host = _ANY_HOST.get(config.host, config.host)
    return await asyncio.open_connection(host, config.port, ssl=_tls(config))


def _tls(config: GatewayConfig) -> ssl.SSLContext | None:
    if config.ssl_certfile is None:
        return None
    # The supervisor connects to its own child, whose certificate names another host.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
