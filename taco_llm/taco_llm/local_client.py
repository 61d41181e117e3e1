"""The in-process client of the scheduler, the counterpart of `SchedulerClient` over gRPC."""

import asyncio
from dataclasses import replace

from taco_gateway.engine.engine_client import EngineError, EngineStats
from taco_gateway.engine.request_table import RequestTable
from taco_gateway.engine.token_stream import TokenStream
from taco_proto.requests import GenerateRequest, ModelInfo
from taco_scheduler.server.client_session import ClientSession, SessionClosedError
from taco_scheduler.server.service import SchedulerService


class LocalClient:
    """An `EngineClient` for a scheduler in this process. It belongs to one event loop."""

    def __init__(self, service: SchedulerService, session: ClientSession, model: ModelInfo) -> None:
        self._service = service
        self._session = session
        self._model = model
        self._requests = RequestTable(session)
        self._reader = asyncio.get_running_loop().create_task(self._read(), name="local-client")

    @classmethod
    async def connect(cls, service: SchedulerService) -> "LocalClient":
        """Makes a client; waits until a worker is attached."""
        session = service.connect("local")
        return cls(service, session, await session.model_info())

    def model_info(self) -> ModelInfo:
        return self._model

    def generate(self, request: GenerateRequest) -> TokenStream:
        return self._requests.generate(request)

    async def stats(self) -> EngineStats:
        engine = self._service.engine
        return EngineStats(
            num_running=engine.num_running,
            num_waiting=engine.num_waiting,
            kv_cache_usage=engine.kv_usage,
            num_free_blocks=engine.num_free_blocks,
            num_blocks=self._model.num_blocks,
            num_workers=self._service.num_workers,
            prometheus=await self._service.prometheus(),
        )

    async def close(self) -> None:
        self._reader.cancel()
        self._requests.fail_all(EngineError(503, "The engine is shutting down."))
        self._session.close()

    async def _read(self) -> None:
        try:
            while True:
                self._requests.dispatch(await self._session.next_batch())
        except SessionClosedError as error:
            # Nothing reads the session any more: reject later requests instead of blocking them.
            self._model = replace(self._model, ready=False)
            self._requests.fail_all(EngineError(503, f"The engine has stopped: {error}."))
