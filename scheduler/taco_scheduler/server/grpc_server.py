"""The scheduler as a process: a gRPC server around `SchedulerService`."""

import asyncio
import gc
import logging
import signal
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from taco_common.admin import serving_admin
from taco_common.grpc_stop import stop_server
from taco_common.grpc_tls import add_port
from taco_common.listener import remove_stale_socket, socket_mode, unix_path
from taco_common.logging import configure_logging
from taco_common.metrics import exposition_in_thread, process_registry
from taco_common.peer_roles import RoleInterceptor
from taco_common.tls import Role
from taco_proto import scheduler_pb2 as pb
from taco_proto.config import DRAIN_SECONDS, MAX_MESSAGE_BYTES, SchedulerConfig, TlsConfig
from taco_proto.errors import ConfigurationError
from taco_proto.scheduler_pb2_grpc import SchedulerServicer, add_SchedulerServicer_to_server
from taco_scheduler.metrics.exposition import EngineCollector
from taco_scheduler.server.drafter_stream import serve_drafter
from taco_scheduler.server.gateway_stream import serve_gateway
from taco_scheduler.server.service import SchedulerService
from taco_scheduler.server.worker_stream import serve_worker

if TYPE_CHECKING:  # a scheduler without Redis need not load its client
    from taco_scheduler.server.advertiser import Advertiser

# Seconds that streams have to end when the server stops.
CLOSE_SECONDS = 1.0
# Only the user that runs the scheduler may connect to a Unix socket.
UNIX_SOCKET_MODE = 0o600

OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a second scheduler on one port is an error
    ("grpc.keepalive_permit_without_calls", 1),  # peers may ping as often as they like
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
)

# Roles that may call each method, if TLS certificates name the caller's role.
_SERVICE = pb.DESCRIPTOR.services_by_name["Scheduler"].full_name
CALLERS = {
    f"{_SERVICE}/Generate": frozenset({Role.GATEWAY}),
    f"{_SERVICE}/Stats": frozenset({Role.GATEWAY}),
    f"{_SERVICE}/Attach": frozenset({Role.WORKER}),
    f"{_SERVICE}/AttachDrafter": frozenset({Role.DRAFT_WORKER}),
}

logger = logging.getLogger("taco.scheduler")


class SchedulerServer:
    """Serves a `SchedulerService` on an address (`unix:/path` or `host:port`)."""

    def __init__(self, service: SchedulerService, address: str) -> None:
        self.address = address
        self._tls = service.config.tls
        self._is_bound = False
        # A peer that disappears is noticed after `worker_timeout`, like one that is silent. gRPC's
        # own pings have another limit, which covers a peer that sends but does not receive.
        half = int(service.config.worker_timeout * 1000 / 2)
        names = ("keepalive_time_ms", "keepalive_timeout_ms", "http2.ping_timeout_ms")
        keepalive = tuple((f"grpc.{name}", half) for name in names)
        interceptors = () if self._tls is None else (RoleInterceptor(CALLERS),)
        self._server = grpc.aio.server(interceptors=interceptors, options=OPTIONS + keepalive)
        self._health = health.aio.HealthServicer()
        add_SchedulerServicer_to_server(_Servicer(service), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self) -> None:
        """Raises:
        ConfigurationError: the address cannot be bound, or a TLS file cannot be read.
        """
        _bind(self._server, self.address, self._tls)
        self._is_bound = True
        await self._server.start()
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        logger.info("listening on %s", self.address)

    async def leave(self) -> None:
        """Tells load balancers to send no more traffic here."""
        await self._health.enter_graceful_shutdown()

    async def stop(self) -> None:
        """Ends all streams and removes the server's own socket file."""
        await stop_server(self._server, CLOSE_SECONDS)
        if self._is_bound and (path := unix_path(self.address)) is not None:
            remove_stale_socket(path)


class _Servicer(SchedulerServicer):
    def __init__(self, service: SchedulerService) -> None:
        self._service = service

    async def Generate(  # noqa: N802
        self,
        request_iterator: AsyncIterator[pb.GatewayMessage],
        context: grpc.aio.ServicerContext,
    ) -> None:
        await serve_gateway(self._service, request_iterator, context)

    async def Attach(  # noqa: N802
        self,
        request_iterator: AsyncIterator[pb.WorkerMessage],
        context: grpc.aio.ServicerContext,
    ) -> None:
        await serve_worker(self._service, request_iterator, context)

    async def AttachDrafter(  # noqa: N802
        self,
        request_iterator: AsyncIterator[pb.DrafterMessage],
        context: grpc.aio.ServicerContext,
    ) -> None:
        await serve_drafter(self._service, request_iterator, context)

    async def Stats(  # noqa: N802
        self, request: pb.StatsRequest, context: grpc.aio.ServicerContext
    ) -> pb.StatsReply:
        engine = self._service.engine
        return pb.StatsReply(
            num_running=engine.num_running,
            num_waiting=engine.num_waiting,
            kv_cache_usage=engine.kv_usage,
            num_free_blocks=engine.num_free_blocks,
            num_blocks=engine.num_blocks,
            num_workers=self._service.num_workers,
            prometheus=await self._service.prometheus(),
        )


# ----------------------------------------------------------------- process


def run_scheduler(config: SchedulerConfig) -> int:
    """Serves until SIGTERM or SIGINT, drains, and returns the exit code.

    A second signal does not wait for running requests.
    """
    configure_logging("scheduler")
    try:
        return asyncio.run(_serve(config))
    except ConfigurationError as error:
        logger.error("%s", error)
        return 1


async def _serve(config: SchedulerConfig) -> int:
    service = SchedulerService(config)
    server = SchedulerServer(service, config.listen)
    advertiser = _advertiser(service, config)
    await service.start()
    stopping, hurried = asyncio.Event(), asyncio.Event()
    _on_signals(stopping, hurried)
    try:
        await server.start()
        if advertiser is not None:
            advertiser.start()
        async with _serving_admin(config, service):
            gc.freeze()  # loaded modules stay: garbage collection need not visit them between steps
            died = asyncio.create_task(service.until_ended())
            await _first_of(stopping.wait(), died)
            if died.done():
                return 1
            logger.info("draining: running requests have %g s", DRAIN_SECONDS)
            await server.leave()
            if advertiser is not None:
                await advertiser.withdraw()
            await _first_of(service.drain(DRAIN_SECONDS), hurried.wait(), died)
            died.cancel()
            return 0
    finally:
        if advertiser is not None:
            await advertiser.withdraw()
        await service.stop()  # which ends the streams
        await server.stop()


def _serving_admin(
    config: SchedulerConfig, service: SchedulerService
) -> AbstractAsyncContextManager[None]:
    registry = process_registry(Role.SCHEDULER, config.tls)
    registry.register(EngineCollector(service.engine))
    return serving_admin(
        config.admin_listen, service.not_ready_reason, lambda: exposition_in_thread(registry)
    )


def _advertiser(service: SchedulerService, config: SchedulerConfig) -> "Advertiser | None":
    if config.redis is None or config.advertise is None:
        return None
    from taco_scheduler.server.advertiser import Advertiser

    return Advertiser(service, config.redis, config.advertise)


def _on_signals(stopping: asyncio.Event, hurried: asyncio.Event) -> None:
    def on_signal() -> None:
        (hurried if stopping.is_set() else stopping).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)


async def _first_of(*parts: Awaitable[object]) -> None:
    """Waits until one is done, and cancels the others unless they were passed as tasks."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, part in zip(tasks, parts, strict=True):
        if task is not part:
            task.cancel()


# ----------------------------------------------------------------- address


def _bind(server: grpc.aio.Server, address: str, tls: TlsConfig | None) -> None:
    """Raises ConfigurationError: the address cannot be bound; the text is one line."""
    path = unix_path(address)
    if path is None:
        _add_port(server, address, tls)
        return
    try:
        is_free = remove_stale_socket(path)
    except OSError as error:  # another user owns it, or its directory does not exist
        raise ConfigurationError(f"cannot listen on {address}: {error.strerror}") from None
    if not is_free:
        raise ConfigurationError(f"cannot listen on {address}: it is in use")
    with socket_mode(UNIX_SOCKET_MODE):
        _add_port(server, address, tls)


def _add_port(server: grpc.aio.Server, address: str, tls: TlsConfig | None) -> None:
    try:
        add_port(server, address, tls)
    except RuntimeError:
        raise ConfigurationError(
            f"cannot listen on {address}: it is in use, or not an address of this machine"
        ) from None
