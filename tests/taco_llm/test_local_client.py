"""The in-process client: requests after the engine has stopped."""

import asyncio

import pytest

from support.fake_worker import FakeWorker
from support.patience import PATIENCE_SECONDS
from taco_gateway.engine.engine_client import EngineError
from taco_gateway.text.text_engine import TextEngine
from taco_llm.local_client import LocalClient
from taco_proto.config import SchedulerConfig
from taco_proto.requests import GenerateRequest
from taco_proto.sampling_params import SamplingParams
from taco_scheduler.server.service import SchedulerService


def request(request_id: str, params: SamplingParams) -> GenerateRequest:
    return GenerateRequest(request_id=request_id, sampling=params)


async def test_a_stopped_engine_rejects_requests_at_once() -> None:
    service = SchedulerService(SchedulerConfig(log_stats=False))
    await service.start()
    service.attach_local(FakeWorker())
    client = await LocalClient.connect(service)
    engine = TextEngine(client, tokenizer=None)
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    async for _ in engine.generate([1, 2, 3], request("served", params)):
        pass
    running = engine.generate([1, 2, 3], request("cut", params.with_updates(max_tokens=60)))
    await anext(running)
    await service.stop()
    with pytest.raises(EngineError) as cut:
        async for _ in running:
            pass
    assert cut.value.code == 503

    async def come_late() -> None:
        await anext(engine.generate([1], request("late", params)))

    with pytest.raises(EngineError) as refused:
        await asyncio.wait_for(come_late(), PATIENCE_SECONDS)
    assert refused.value.code == 503
    await client.close()
