"""Readiness of a service with several workers."""

import socket
from pathlib import Path

import pytest

from support.fake_worker import FakeWorker, worker_info
from support.live_scheduler import scheduler
from taco_llm.supervisor.readiness import _has_workers, check_address_free
from taco_proto.config import GatewayConfig, ModelConfig
from taco_proto.errors import ConfigurationError


def test_a_port_in_use_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        config = GatewayConfig(
            model=ModelConfig(model="demo"), scheduler="unix:x", host="127.0.0.1", port=port
        )
        with pytest.raises(ConfigurationError) as error:
            check_address_free(config)
    assert str(error.value) == (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; stop the process that uses "
        "it, or give another port with --port"
    )


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
