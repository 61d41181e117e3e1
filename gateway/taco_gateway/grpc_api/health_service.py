"""gRPC's health service of a gateway (grpc.health.v1); it needs no API key."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from taco_gateway.gateway import Gateway

# Of this gateway: its watchers need no key, and each holds a stream.
MAX_WATCHERS = 64
# Seconds after which a watcher sees a change.
WATCH_SECONDS = 0.5

Context = grpc.aio.ServicerContext[Any, Any]
Status = health_pb2.HealthCheckResponse


class HealthService(health_pb2_grpc.HealthServicer):
    """Health checks: SERVING while a worker is attached and this gateway is not draining.

    Args:
        service: name of the service whose health it reports, as well as that of "", the server.
    """

    def __init__(self, gateway: Gateway, service: str) -> None:
        self._gateway = gateway
        self._services = ("", service)
        self._num_watchers = 0

    async def Check(  # noqa: N802 (the name in health.proto)
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        status = self._status(request.service)
        if status == Status.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return Status(status=status)

    async def Watch(  # noqa: N802 (the name in health.proto)
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Yields the status and each change of it. The stream ends when this gateway drains, which
        would wait for it.
        """
        if self._num_watchers >= MAX_WATCHERS:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"The server has {MAX_WATCHERS} watchers of its health, as many as it may have.",
            )
        self._num_watchers += 1
        last: int | None = None
        try:
            while True:
                is_ending = self._gateway.draining
                if (status := self._status(request.service)) != last:
                    yield Status(status=status)
                if is_ending:
                    return
                last = status
                await asyncio.sleep(WATCH_SECONDS)
        finally:
            self._num_watchers -= 1

    def _status(self, service: str) -> int:
        if service not in self._services:
            return Status.SERVICE_UNKNOWN
        return Status.SERVING if self._gateway.ready else Status.NOT_SERVING
