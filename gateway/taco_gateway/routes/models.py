"""`GET /v1/models` and `GET /v1/models/{id}`."""

from urllib.parse import unquote

from fastapi import APIRouter, Request

from taco_gateway.gateway import Gateway, gateway_of, key_of
from taco_gateway.protocol.responses import ModelCard, ModelList

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    gateway = gateway_of(request)
    key = key_of(request)
    names = [name for name in gateway.model_names if key.may_use(name)]
    return ModelList(data=[_card(gateway, name) for name in names])


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> ModelCard:
    gateway = gateway_of(request)
    name = unquote(name)  # paths are matched as they were sent
    gateway.check_model(name, key_of(request))
    return _card(gateway, name)


def _card(gateway: Gateway, name: str) -> ModelCard:
    info = gateway.client.model_info()
    return ModelCard(
        id=name,
        created=gateway.created,
        root=gateway.model_names[0],
        max_model_len=info.max_model_len if info is not None else None,
    )
