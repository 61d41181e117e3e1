"""The gateway's application over a real engine, all in this process."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from support.local_engine import serve
from taco_gateway.app import create_app
from taco_gateway.text.tokenizer.loading import load_tokenizer
from taco_llm.local_client import LocalClient
from taco_proto.config import GatewayConfig, ModelConfig, WorkerConfig
from taco_worker.worker import Worker


@asynccontextmanager
async def real_app(
    checkpoint: Path, gateway: Mapping[str, Any] | None = None, **worker: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of an application that serves a checkpoint.

    Args:
        gateway, worker: fields of GatewayConfig and WorkerConfig.
    """
    model = ModelConfig(model=str(checkpoint))
    settings = {"num_blocks": 256, "max_num_seqs": 8, "num_threads": 1, **worker}
    executor = Worker(WorkerConfig(model=model, **settings))
    try:
        async with serve(executor) as service:
            client = await LocalClient.connect(service)
            config = GatewayConfig(model=model, scheduler="", log_requests=False, **(gateway or {}))
            app = create_app(config, client, load_tokenizer(model))
            transport = httpx.ASGITransport(app=app)
            try:
                async with httpx.AsyncClient(transport=transport, base_url="http://taco") as http:
                    yield http
            finally:
                app.state.gateway.engine.close()
                await client.close()
    finally:
        executor.close()
