"""`/health`, `/ping` and `/version`, for load balancers and operators; they need no API key."""

from importlib.metadata import version

from fastapi import APIRouter, Request
from fastapi.responses import Response

from taco_gateway.api_errors import ApiError
from taco_gateway.api_keys.authentication import public
from taco_gateway.engine.engine_client import not_licensed
from taco_gateway.gateway import gateway_of

router = APIRouter()
VERSION = version("taco-llm")


@router.get("/health")
@router.get("/ping")
@router.post("/ping")
@public
async def health(request: Request) -> Response:
    """200 while requests are accepted: a worker serves, and this gateway is not draining."""
    gateway = gateway_of(request)
    if gateway.license_problem:
        raise not_licensed()
    if not gateway.ready:
        raise ApiError(503, "The server is not ready.")
    return Response()


@router.get("/version")
@public
async def show_version() -> dict[str, str]:
    return {"version": VERSION}
