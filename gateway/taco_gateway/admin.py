"""The admin listener: probes, drain and metrics, apart from the port that clients reach."""

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from taco_gateway.engine.engine_client import EngineError
from taco_gateway.gateway import Gateway
from taco_gateway.routes.metrics import exposition


def create_admin_app(gateway: Gateway) -> Starlette:
    """`GET /livez`, `GET /readyz`, `POST /drain` and `GET /metrics`.

    No key is asked for: who reaches the listener may use it.
    """

    async def livez(_: Request) -> Response:
        """Answered on the loop that serves all requests: it ticks."""
        return JSONResponse({"alive": True})

    async def readyz(_: Request) -> Response:
        reason = await why_not_ready(gateway)
        if reason is None:
            return JSONResponse({"ready": True})
        return JSONResponse({"ready": False, "reason": reason}, status_code=503)

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


async def why_not_ready(gateway: Gateway) -> str | None:
    """Why a load balancer should look elsewhere; None: it should not."""
    if gateway.draining:
        return "draining"
    if not gateway.keys.is_known:
        return "the API keys are not known yet"
    if gateway.license_problem:
        return f"no worker has a license: {gateway.license_problem}"
    if not gateway.ready:
        return "no worker serves the model"
    wanted = gateway.config.min_ready_workers
    if wanted == 1:
        return None
    try:
        num_workers = (await gateway.client.stats()).num_workers
    except EngineError:
        return "the scheduler does not answer"
    return None if num_workers >= wanted else f"{num_workers} of {wanted} workers are there"


def admin_uvicorn_config(gateway: Gateway) -> uvicorn.Config:
    return uvicorn.Config(
        create_admin_app(gateway),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
