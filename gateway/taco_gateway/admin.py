"""The admin listener: probes, drain and metrics, apart from the port that clients reach."""

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from taco_gateway.engine.engine_client import EngineError
from taco_gateway.gateway import Gateway
from taco_gateway.http.uvicorn_protocol import ConnectionCounts, http_protocol
from taco_gateway.routes.metrics import exposition

MAX_CONNECTIONS = 64


def create_admin_app(gateway: Gateway) -> Starlette:
    """`GET /livez`, `GET /readyz`, `POST /drain` and `GET /metrics`.

    No key is asked for: who reaches the listener may use it.
    """

    readiness = Readiness(gateway)

    async def livez(_: Request) -> Response:
        """Answered on the loop that serves all requests: it ticks."""
        return JSONResponse({"alive": True})

    async def readyz(_: Request) -> Response:
        is_ready, reason = await readiness.check()
        body = {"ready": is_ready} | ({"reason": reason} if reason else {})
        return JSONResponse(body, status_code=200 if is_ready else 503)

    async def drain(_: Request) -> Response:
        """New requests are refused from now on; may be asked again, to see how many are left."""
        gateway.draining = True
        return JSONResponse({"draining": True, "active_requests": gateway.metrics.num_active})

    async def metrics(_: Request) -> Response:
        return await exposition(gateway)

    return Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/drain", drain, methods=["POST"]),
            Route("/metrics", metrics),
        ]
    )


class Readiness:
    """Whether a load balancer should send connections here.

    What all gateways have in common must not take them all out of it: clients would be refused
    connections in place of an answer, such as that there is no license. So a gateway that was ready
    once stays so while its own side is well, and one that starts without a license is ready to say
    so. Who asks for more workers than one (`min_ready_workers`) asks for more.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._was_ready = False

    async def check(self) -> tuple[bool, str]:
        """Whether it is ready, and what is wrong even so; empty: nothing is."""
        if reason := await self._own_problem():
            return False, reason
        problem = self._common_problem()
        self._was_ready |= not problem or bool(self._gateway.license_problem)
        return self._was_ready, problem

    async def _own_problem(self) -> str:
        gateway = self._gateway
        if gateway.draining:
            return "draining"
        if not gateway.keys.is_known:
            return "the API keys are not known yet"
        wanted = gateway.config.min_ready_workers
        if wanted == 1:
            return ""
        try:
            num_workers = (await gateway.client.stats()).num_workers
        except EngineError:
            return "the scheduler does not answer"
        return "" if num_workers >= wanted else f"{num_workers} of {wanted} workers are there"

    def _common_problem(self) -> str:
        if problem := self._gateway.license_problem:
            return f"no worker has a license: {problem}"
        return "" if self._gateway.ready else "no worker serves the model"


def admin_uvicorn_config(gateway: Gateway) -> uvicorn.Config:
    return uvicorn.Config(
        create_admin_app(gateway),
        http=http_protocol(max_connections=MAX_CONNECTIONS, counts=ConnectionCounts()),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
