"""The gateway process: starts HTTP, gRPC and admin listeners, handles signals and drains."""

import asyncio
import gc
import logging
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import grpc.aio
import uvicorn
import uvloop
from fastapi import FastAPI

from taco_common.admin import ADMIN_SOCKET_MODE, serving_admin_app
from taco_common.grpc_stop import stop_server
from taco_common.http_protocol import ConnectionLimits, http_protocol
from taco_common.http_server import HttpServer
from taco_common.listener import BACKLOG, EVERY_HOST, host_port, listen
from taco_common.logging import configure_logging
from taco_gateway.admin import gateway_admin_app
from taco_gateway.app import create_app
from taco_gateway.engine.rate_limited_client import RateLimitedClient
from taco_gateway.engine.scheduler_client import SchedulerClient
from taco_gateway.gateway import Gateway
from taco_gateway.grpc_api.inference_service import start_inference_server
from taco_gateway.http.connection_errors import connection_error
from taco_gateway.http.file_descriptors import (
    DescriptorCheck,
    connections_within_limit,
    raise_descriptor_limit,
)
from taco_gateway.text.tokenizer.loading import load_tokenizer
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.config import GatewayConfig
from taco_proto.errors import ConfigurationError

if TYPE_CHECKING:
    from taco_common.redis_link import RedisLink
    from taco_gateway.redis_state import RedisState

logger = logging.getLogger("taco.gateway")

CLOSE_SECONDS = 5.0  # for clients to read their last bytes
UNIX_SOCKET_MODE = 0o660
TICKS_PER_SECOND = 10  # of uvicorn's main loop


def run_gateway(config: GatewayConfig) -> int:
    """Serves until SIGTERM or SIGINT, lets running requests finish, and returns the exit code.

    A second signal does not wait for running requests.
    """
    configure_logging("gateway")
    raise_descriptor_limit()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config))
    except ConfigurationError as error:
        logger.error("%s", error)
        return 1
    return 0


async def _serve(config: GatewayConfig) -> None:
    signals = _Signals(config)
    address = f"unix:{config.uds}" if config.uds else host_port(config.host, config.port)
    with ExitStack() as sockets:
        listener = sockets.enter_context(listen(address, unix_mode=UNIX_SOCKET_MODE))
        admin: socket.socket | None = None
        if config.admin_listen is not None:
            admin = sockets.enter_context(listen(config.admin_listen, unix_mode=ADMIN_SOCKET_MODE))
        async with _redis_state(config) as redis_state:
            client = _scheduler_client(config, None if redis_state is None else redis_state.link)
            client.start()
            try:
                # The tokenizer loads while the client connects to the scheduler.
                loading = asyncio.create_task(asyncio.to_thread(load_tokenizer, config.model))
                await _first_of(loading, signals.first.wait())
                if not signals.first.is_set():
                    app = _make_app(config, client, await loading, redis_state)
                    # The worker takes longer to load, so this does not delay the first answer.
                    gateway: Gateway = app.state.gateway
                    await gateway.engine.warm_up()
                    async with _serving_admin(gateway, admin):
                        await _serve_until_signal(config, app, listener, signals)
            finally:
                await client.close()


@asynccontextmanager
async def _redis_state(config: GatewayConfig) -> "AsyncIterator[RedisState | None]":
    if config.redis is None:
        yield None
        return
    from taco_gateway.redis_state import RedisState  # most gateways need no Redis

    redis_state = RedisState(config.redis, with_keys=config.redis_keys)
    async with redis_state.running():
        yield redis_state


def _scheduler_client(config: GatewayConfig, redis: "RedisLink | None") -> SchedulerClient:
    if config.schedulers:
        return SchedulerClient(*config.schedulers, tls=config.tls)
    return SchedulerClient(redis=redis, model=config.model.served_name, tls=config.tls)


def _make_app(
    config: GatewayConfig,
    client: SchedulerClient,
    tokenizer: Tokenizer | None,
    redis_state: "RedisState | None",
) -> FastAPI:
    if redis_state is None:
        return create_app(config, client, tokenizer)
    engine = RateLimitedClient(client, redis_state.limits)
    app = create_app(config, engine, tokenizer, redis_state.key_ring)
    redis_state.export_metrics(app.state.gateway.metrics, config.model.served_name)
    return app


@asynccontextmanager
async def _serving_admin(gateway: Gateway, listener: socket.socket | None) -> AsyncIterator[None]:
    """Serves the admin listener, if there is one, until the last request has ended."""
    if listener is None:
        yield
        return
    address = gateway.config.admin_listen or ""
    async with serving_admin_app(gateway_admin_app(gateway), listener, address, logger):
        yield


async def _serve_until_signal(
    config: GatewayConfig, app: FastAPI, listener: socket.socket, signals: "_Signals"
) -> None:
    gateway: Gateway = app.state.gateway
    server = GatewayServer(uvicorn_config(config, app), DescriptorCheck())
    inference: grpc.aio.Server | None = None
    if config.grpc_listen is not None:
        inference = await start_inference_server(config.grpc_listen, gateway)
    # A full collection would visit every loaded module and hold the event loop for 75 ms.
    gc.collect()
    gc.freeze()
    ending: list[Awaitable[object]] = [asyncio.create_task(server.serve(sockets=[listener]))]
    logger.info("listening on %s", _address(config, listener))
    if config.uds is None and config.host in EVERY_HOST and gateway.keys.allows_anonymous:
        logger.warning(
            "listening on all addresses without an API key: anyone who reaches port %d can use the "
            "model; give --api-key, or --host 127.0.0.1",
            config.port,
        )
    signals.hangup = lambda: _reload_keys(gateway)
    await _first_of(ending[0], signals.first.wait())

    logger.info("draining: running requests have %g s", config.drain_timeout)
    gateway.draining = True
    server.should_exit = True
    if inference is not None:
        ending.append(stop_server(inference, config.drain_timeout))
    ended = asyncio.gather(*ending)
    await _first_of(ended, signals.second.wait(), asyncio.sleep(config.drain_timeout))
    # Requests that still run fail with 503, which ends their connections.
    await gateway.client.close()
    await ended


def _reload_keys(gateway: Gateway) -> None:
    try:
        gateway.reload_keys()
    except ConfigurationError as error:
        logger.error("cannot reload the API keys, the former keys stay valid: %s", error)
    else:
        logger.info("reloaded the API keys")


class _Signals:
    """SIGTERM and SIGINT: the first starts a drain, the second ends it at once.

    Attributes:
        hangup: called on SIGHUP, with a key file: reloads the API keys.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.hangup: Callable[[], None] = lambda: None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        if config.api_key_file is not None:
            loop.add_signal_handler(signal.SIGHUP, lambda: self.hangup())

    def _on_signal(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


async def _first_of(*parts: Awaitable[object]) -> None:
    """Waits until one part is done. Other coroutines are cancelled; other futures are not."""
    futures = [asyncio.ensure_future(part) for part in parts]
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    for part, future in zip(parts, futures, strict=True):
        if part is not future:
            future.cancel()


class GatewayServer(HttpServer):
    """The HTTP server of clients, which also reports when no file descriptor is left.

    Args:
        descriptors: checked every second; None: not checked.
    """

    def __init__(self, config: uvicorn.Config, descriptors: DescriptorCheck | None = None) -> None:
        super().__init__(config)
        self._descriptors = descriptors

    async def on_tick(self, counter: int) -> bool:
        if self._descriptors is not None and counter % TICKS_PER_SECOND == 0:
            self._descriptors.check()
        return await super().on_tick(counter)


def uvicorn_config(config: GatewayConfig, app: FastAPI) -> uvicorn.Config:
    """Raises:
    ConfigurationError: the TLS files cannot be used.
    """
    gateway: Gateway = app.state.gateway
    result = uvicorn.Config(
        app,
        http=http_protocol(
            ConnectionLimits(max_connections=connections_within_limit(config.max_connections)),
            gateway.metrics.connections,
            connection_error,
        ),
        ws="none",
        lifespan="on",
        log_config=None,
        log_level=config.uvicorn_log_level,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=round(config.drain_timeout + CLOSE_SECONDS),
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        ssl_ca_certs=config.ssl_ca_certs,
        ssl_cert_reqs=config.ssl_cert_reqs,
    )
    try:
        result.load()
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"the TLS files cannot be used: {error}") from None
    return result


def _address(config: GatewayConfig, listener: socket.socket) -> str:
    if config.uds:
        return f"unix:{config.uds}"
    scheme = "https" if config.ssl_certfile else "http"
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{scheme}://{host}:{listener.getsockname()[1]}"
