"""The HTTP application: routes, authentication, error handlers and middleware."""

import importlib
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI
from starlette.middleware.cors import CORSMiddleware

from taco_gateway.api_errors import install_error_handlers
from taco_gateway.api_keys.authentication import Authenticator
from taco_gateway.api_keys.key_ring import KeyRing
from taco_gateway.engine.engine_client import EngineClient
from taco_gateway.gateway import Gateway
from taco_gateway.http.middleware import RequestContextMiddleware
from taco_gateway.routes import (
    chat,
    completions,
    health,
    metrics,
    models,
    openapi,
    responses,
    tokenize,
)
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.config import GatewayConfig
from taco_proto.errors import ConfigurationError

ROUTERS = (
    chat.router,
    completions.router,
    responses.router,
    models.router,
    health.router,
    tokenize.router,
    openapi.router,
)


def create_app(
    config: GatewayConfig,
    client: EngineClient,
    tokenizer: Tokenizer | None,
    keys: KeyRing | None = None,
) -> FastAPI:
    """Creates the gateway's application. Its `state.gateway` is the `Gateway` that all routes use.

    Args:
        keys: the API keys; None: those of the configuration.

    Raises:
        ConfigurationError: a middleware, the chat template, a parser or the key file cannot be
            loaded.
    """
    gateway = Gateway(config, client, tokenizer, keys)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        gateway.close()

    app = FastAPI(
        lifespan=lifespan,
        title="TACO-LLM",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(Authenticator(gateway.keys))],
    )
    app.root_path = config.root_path
    app.state.gateway = gateway
    for router in ROUTERS:
        app.include_router(router)
    if not config.has_admin_port:
        app.include_router(metrics.router)
    install_error_handlers(app)
    for path in config.middleware:
        _add_middleware(app, path)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=config.allowed_origins,
        allow_methods=config.allowed_methods,
        allow_headers=config.allowed_headers,
        allow_credentials=config.allow_credentials,
        expose_headers=["x-request-id"],
    )
    app.add_middleware(RequestContextMiddleware, metrics=gateway.metrics)  # added last: outermost
    return app


def _add_middleware(app: FastAPI, path: str) -> None:
    """Adds the middleware `package.module.name`: an ASGI class or a coroutine function."""
    module_name, _, name = path.rpartition(".")
    try:
        middleware: Any = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"--middleware {path}: {error}") from None
    if inspect.iscoroutinefunction(middleware):
        app.middleware("http")(middleware)
    elif callable(middleware):
        app.add_middleware(middleware)
    else:
        raise ConfigurationError(f"--middleware {path}: neither a class nor a coroutine function")
