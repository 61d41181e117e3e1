"""Readiness of a service with several workers."""

from pathlib import Path

from support.fake_worker import FakeWorker, worker_info
from support.live_scheduler import scheduler
from taco_llm.supervisor.readiness import _has_workers
from taco_proto.config import GatewayConfig, ModelConfig


async def test_other_workers_do_not_count_as_ready(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/scheduler.sock"
    config = GatewayConfig(model=ModelConfig(model="demo"), scheduler=address)
    own = ("worker-0", "worker-1")
    assert not await _has_workers(config, ())
    async with scheduler(address, None) as service:
        assert not await _has_workers(config, ())
        for name in ("worker-0", "elsewhere"):
            service.attach_local(FakeWorker(worker_info(name=name)))
        assert await _has_workers(config, ())
        assert not await _has_workers(config, own)
        service.attach_local(FakeWorker(worker_info(name="worker-1")))
        assert await _has_workers(config, own)
