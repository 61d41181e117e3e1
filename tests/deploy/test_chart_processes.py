"""Runs the rendered chart as processes: its commands, environments, files and probes."""

from pathlib import Path

import httpx
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.certificates import LIFETIME, make_certificates, tls_config
from support.chart_processes import as_compose
from support.charts import EXAMPLES, PLATFORM, render
from support.compose import running_topology
from support.patience import wait_until
from support.redis_server import rediss_url
from taco_common.tls import Role
from taco_llm.certificates import issue

VALUES = {
    "gateway": {"apiKeys": {"secretName": "api-keys"}, "grpc": {"enabled": True}},
    "workerCpu": {"kvOffload": {"enabled": True, "hostGiB": 1}, "kvDisk": {"enabled": True}},
    "draftWorker": {"enabled": True, "model": "demo-draft"},
    "redis": {"enabled": True, "secretName": "redis"},
    "license": {"mode": "off"},
    "tls": {
        "enabled": True,
        "secretNames": {
            "gateway": "gateway-cert",
            "scheduler": "scheduler-cert",
            "worker": "worker-cert",
            "draftWorker": "draft-worker-cert",
            "redis": "redis-cert",
            "client": "client-cert",
        },
    },
}


def certificate_secrets(directory: Path) -> dict[str, dict[str, str]]:
    roles = (Role.GATEWAY, Role.SCHEDULER, Role.WORKER, Role.DRAFT_WORKER, Role.REDIS)
    files = make_certificates(directory, *roles)
    issue(directory, Role.REDIS, LIFETIME, ["127.0.0.1"])  # the host is this machine
    return {
        f"{role}-cert": {
            "ca.crt": (files / "ca.crt").read_text(),
            "tls.crt": (files / f"{role}.crt").read_text(),
            "tls.key": (files / f"{role}.key").read_text(),
        }
        for role in roles
    }


def test_rendered_pods_run_as_processes(tmp_path: Path) -> None:
    release = render(PLATFORM, EXAMPLES / "demo-cpu.yaml", values=VALUES)
    secrets = certificate_secrets(tmp_path / "certificates") | {
        "api-keys": {"keys.yaml": "- {name: search, key: sk-search}"},
        "redis": {"password": "secret"},
    }
    compose = as_compose(release, tmp_path, secrets)
    # Clients stop before their servers, so that each can sign off.
    components = ("redis", "scheduler", "worker-cpu", "draft-worker", "gateway")
    names = [f"taco-{component}" for component in components]
    assert {*names} == {*compose["services"]}
    with running_topology(compose, names, tmp_path) as topology:
        for name in names:
            topology.until_healthy(name)

        as_gateway = tls_config(tmp_path / "certificates", Role.GATEWAY)
        check_redis_wants_the_password(rediss_url(topology.port("taco-redis", 6379), as_gateway))
        assert "secret" not in topology.log("taco-redis")
        wait_until(
            lambda: "trusted" in topology.log("taco-scheduler"), "a scheduler that trusts Redis"
        )

        url = f"http://127.0.0.1:{topology.port('taco-gateway', 8000)}/v1/completions"
        request = {"model": "demo", "prompt": "os.path", "max_tokens": 8}
        assert httpx.post(url, json=request).status_code == 401
        headers = {"Authorization": "Bearer sk-search"}
        answer = httpx.post(url, json=request, headers=headers, timeout=30).json()
        assert answer["usage"]["completion_tokens"] == 8, topology.log("taco-gateway")
        assert "os.path" not in topology.log("taco-gateway")

        codes = topology.stop()
        assert set(codes.values()) == {0}, {name: topology.log(name) for name in codes}


def check_redis_wants_the_password(url: str) -> None:
    client = redis.Redis.from_url(url, password="secret")
    assert client.config_get("appendonly") == {"appendonly": "yes"}
    with pytest.raises(redis.AuthenticationError):
        redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0)).ping()
