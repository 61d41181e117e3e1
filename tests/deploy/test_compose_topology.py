"""Runs the compose file's services as processes, with its commands, secrets, certificates and
checks.
"""

import os
import ssl
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

from support.compose import FOLDER, Topology, read_compose, running_topology
from support.patience import wait_until
from taco_license.document.issue import issue
from taco_license.document.keys import read_private_key
from taco_license.document.license_file import Gpu

# Prometheus and Grafana are not installed.
SERVICES = (
    *("gateway-1", "gateway-2", "worker", "draft-worker", "scheduler"),
    *("license-server", "redis"),
)
HOST = "host-7"


def prepare(secrets: Path, taco: str) -> None:
    environment = os.environ | {"SECRETS": str(secrets), "TACO": taco}
    subprocess.run([FOLDER / "prepare.sh"], env=environment, check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("secrets")
    prepare(directory, f"{sys.executable} -m taco_llm.cli.main")
    return directory


def test_prepare_keeps_existing_files(secrets: Path) -> None:
    before = {path.name: path.read_bytes() for path in secrets.iterdir()}
    prepare(secrets, "false")
    assert {path.name: path.read_bytes() for path in secrets.iterdir()} == before


def test_secrets_are_readable_by_services_only(secrets: Path) -> None:
    compose = read_compose({"SECRETS": str(secrets)})
    mounted = {Path(secret["file"]).name for secret in compose["secrets"].values()}
    modes = {path.name: path.stat().st_mode & 0o777 for path in secrets.iterdir()}
    assert secrets.stat().st_mode & 0o777 == 0o700
    assert modes == dict.fromkeys(mounted, 0o444) | {"ca.key": 0o600, "license.key": 0o600}


def test_the_platform_runs_from_the_compose_file(secrets: Path, tmp_path: Path) -> None:
    compose = read_compose({"SECRETS": str(secrets), "LICENSE": "required", "LICENSE_ID": HOST})
    with running_topology(compose, SERVICES, tmp_path) as topology:
        topology.until_healthy("license-server")
        upload_license(topology, secrets)
        for name in SERVICES:
            topology.until_healthy(name)
        for gateway in ("gateway-1", "gateway-2"):
            # A worker that asked before the upload asks again after a while.
            await_license(f"http://127.0.0.1:{topology.port(gateway, 8000)}/v1", secrets)
            check_answers(f"http://127.0.0.1:{topology.port(gateway, 8000)}/v1", secrets)
        check_prometheus_reaches_its_targets(topology, secrets)
        codes = topology.stop()
        assert set(list(codes)[:2]) == {"gateway-1", "gateway-2"}  # servers stop last
        assert set(codes.values()) == {0}, {name: topology.log(name) for name in codes}


def operator(secrets: Path) -> ssl.SSLContext:
    """Requests to the license server as an operator, and as Prometheus."""
    context = ssl.create_default_context(cafile=str(secrets / "ca.crt"))
    context.load_cert_chain(secrets / "client.crt", secrets / "client.key")
    return context


def upload_license(topology: Topology, secrets: Path) -> None:
    document = issue(
        [Gpu(HOST, "CPU")],
        read_private_key(str(secrets / "license.key")),
        app_id="1",
        customer="compose",
        expires="1d",
        access_limit=1,
        now=datetime.now(UTC),
    )
    url = f"https://localhost:{topology.port('license-server', 10080)}/ls"
    answer = httpx.post(url, files={"file": document}, verify=operator(secrets))
    assert answer.text.strip() == "license file sucessfully uploaded", answer.text


def await_license(url: str, secrets: Path) -> None:
    [owner] = yaml.safe_load((secrets / "keys.yaml").read_text())
    body = {"model": "demo", "prompt": "a", "max_tokens": 1}
    headers = {"authorization": f"Bearer {owner['key']}"}

    def is_licensed() -> bool:
        answer = httpx.post(f"{url}/completions", json=body, headers=headers, timeout=60)
        return "license_invalid" not in answer.text

    wait_until(is_licensed, "a licensed worker")


def check_answers(url: str, secrets: Path) -> None:
    [owner] = yaml.safe_load((secrets / "keys.yaml").read_text())
    messages: Any = [{"role": "user", "content": "What does os.path.join do?"}]
    with openai.OpenAI(base_url=url, api_key=owner["key"], max_retries=0) as client:
        answer = client.chat.completions.create(model="demo", messages=messages, max_tokens=8)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 8
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="sk-other").models.list()


def check_prometheus_reaches_its_targets(topology: Topology, secrets: Path) -> None:
    for job in yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["scrape_configs"]:
        [found] = job["dns_sd_configs"]
        tls = job.get("tls_config", {})
        extensions = {"sni_hostname": tls["server_name"]} if tls else {}
        for name in found["names"]:
            url = f"{job.get('scheme', 'http')}://127.0.0.1:{topology.port(name, found['port'])}"
            with httpx.Client(verify=operator(secrets)) as client:
                page = client.get(f"{url}/metrics", extensions=extensions).text
            assert "\ntaco:" in page, f"{name}: {page}"
