"""`GET /v1/models` and `GET /v1/models/{id}`."""

from urllib.parse import unquote

from fastapi import APIRouter, Request

from taco_gateway.gateway import Gateway, gateway_of, key_of
from taco_gateway.protocol.responses import ModelCard, ModelList

router = APIRouter()


@router.get("/v1/models", summary="List the served models")
async def list_models(request: Request) -> ModelList:
    """The base model by each of its names, and LoRA adapters, whose parent it is.

    Empty until a worker has attached.
    """
    gateway = gateway_of(request)
    length = _max_model_len(gateway)
    if not length:
        return ModelList(data=[])
    key = key_of(request)
    names = [*gateway.model_names, *gateway.adapter_names]
    names = [name for name in dict.fromkeys(names) if key.may_use(name)]
    return ModelList(data=[_card(gateway, name, length) for name in names])


@router.get("/v1/models/{name:path}", summary="One model")
async def get_model(request: Request, name: str) -> ModelCard:
    """The name may contain slashes, plain or as `%2F`."""
    gateway = gateway_of(request)
    name = unquote(name)  # routes match the path as it was sent
    gateway.check_model(name, key_of(request))
    length = _max_model_len(gateway) or gateway.engine.model_info().max_model_len
    return _card(gateway, name, length)


def _max_model_len(gateway: Gateway) -> int:
    """0 until a worker has attached."""
    info = gateway.client.model_info()
    return 0 if info is None else info.max_model_len


def _card(gateway: Gateway, name: str, max_model_len: int) -> ModelCard:
    base = gateway.model_names[0]
    return ModelCard(
        id=name,
        created=gateway.created,
        root=base,
        parent=None if name in gateway.model_names else base,
        max_model_len=max_model_len,
    )
