"""`GET /metrics`: metrics of the gateway and the scheduler, for Prometheus."""

import logging

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from taco_gateway.api_keys.authentication import public
from taco_gateway.engine.engine_client import EngineError
from taco_gateway.gateway import Gateway, gateway_of

router = APIRouter()
logger = logging.getLogger("taco.gateway")


@router.get("/metrics")
@public
async def metrics(request: Request) -> Response:
    return Response(await exposition(gateway_of(request)), media_type=CONTENT_TYPE_LATEST)


async def exposition(gateway: Gateway) -> bytes:
    """Metrics of the gateway, and those of the scheduler if it answers."""
    scheduler = b""
    try:
        scheduler = (await gateway.client.stats()).prometheus
    except EngineError as error:
        logger.warning("no metrics from the scheduler: %s", error.message)
    return gateway.metrics.exposition(scheduler)
