"""The gateway as a process: HTTP, the Inference service, and how both come up and go down."""

import asyncio
import logging
import os
import signal
import socket
import ssl
import stat
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager

import uvicorn
from fastapi import FastAPI

from taco_gateway.app import create_app
from taco_gateway.gateway import Gateway
from taco_gateway.http_protocol import GatewayHttpProtocol
from taco_gateway.inference_service import start_inference_server
from taco_gateway.scheduler_client import SchedulerClient
from taco_gateway.tokenizer_files import load_tokenizer
from taco_proto.config import GatewayConfig
from taco_proto.errors import ConfigurationError
from taco_proto.logging import configure_logging

logger = logging.getLogger("taco.gateway")

BACKLOG = 2048
UNIX_SOCKET_MODE = 0o660


def run_gateway(config: GatewayConfig) -> int:
    """Serves until SIGTERM or SIGINT, lets running requests finish, and returns the exit code.

    A second signal does not wait for running requests.
    """
    configure_logging("gateway")
    loop_factory = uvicorn.Config("", loop="uvloop").get_loop_factory()
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(_serve(config))
    except ConfigurationError as error:
        logger.error("%s", error)
        return 1
    return 0


async def _serve(config: GatewayConfig) -> None:
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(_bind(config))
        client = SchedulerClient(config.scheduler)
        client.start()
        stack.push_async_callback(client.close)
        # The tokenizer loads while the scheduler is dialled.
        tokenizer = await asyncio.to_thread(load_tokenizer, config.model)
        app = create_app(config, client, tokenizer)
        gateway: Gateway = app.state.gateway
        inference = None
        if config.grpc_listen is not None:
            inference = await start_inference_server(config.grpc_listen, gateway)
        server = GatewayServer(uvicorn_config(config, app))
        server.drain_on_signals(gateway)
        logger.info("listening on %s", _address(config, listener))
        await server.serve(sockets=[listener])
        if inference is not None:
            await inference.stop(0)


class GatewayServer(uvicorn.Server):
    """uvicorn, going down in two steps: first no new requests, then no more waiting."""

    def drain_on_signals(self, gateway: Gateway) -> None:
        def on_signal() -> None:
            if gateway.draining:
                self.force_exit = True
                return
            logger.info("draining: running requests have %g s", gateway.config.drain_timeout)
            gateway.draining = True
            self.should_exit = True

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, on_signal)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """uvicorn's own handlers would raise the signal again in the end; ours stay."""
        yield


def uvicorn_config(config: GatewayConfig, app: FastAPI) -> uvicorn.Config:
    """Raises:
    ConfigurationError: the TLS files cannot be used.
    """
    result = uvicorn.Config(
        app,
        http=GatewayHttpProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level=config.uvicorn_log_level,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=round(config.drain_timeout),
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


# ----------------------------------------------------------------- address


@contextmanager
def _bind(config: GatewayConfig) -> Generator[socket.socket, None, None]:
    """Raises:
    ConfigurationError: the address is in use, or none of this machine.
    """
    try:
        listener = _bind_unix(config.uds) if config.uds else _bind_tcp(config.host, config.port)
    except OSError as error:
        where = config.uds or f"{config.host}:{config.port}"
        raise ConfigurationError(f"cannot listen on {where}: {error.strerror}") from None
    with listener:
        yield listener
    if config.uds:
        _remove_socket(config.uds)


def _bind_tcp(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def _bind_unix(path: str) -> socket.socket:
    _remove_socket(path)
    listener = socket.socket(socket.AF_UNIX)
    # Made with its final mode: at no moment may others connect.
    old_mask = os.umask(0o777 & ~UNIX_SOCKET_MODE)
    try:
        listener.bind(path)
    finally:
        os.umask(old_mask)
    listener.listen(BACKLOG)
    return listener


def _remove_socket(path: str) -> None:
    """Removes the socket that a process left behind; never one that is served, or another file."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            os.unlink(path)


def _address(config: GatewayConfig, listener: socket.socket) -> str:
    if config.uds:
        return f"unix:{config.uds}"
    scheme = "https" if config.ssl_certfile else "http"
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{scheme}://{host}:{listener.getsockname()[1]}"
