"""Rules for deploy/compose/: privileges, networks, mounts, secrets."""

import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.compose import FOLDER, read_compose, secret_files
from taco_llm import __version__
from taco_llm.cli.main import build_parser

COMPOSE = read_compose({})
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]
INTERNAL = {name for name, network in COMPOSE["networks"].items() if network.get("internal")}
DOCKER = FOLDER.parent / "docker"


def test_the_compose_file_matches_the_compose_schema() -> None:
    checker = Path(sysconfig.get_path("scripts")) / "check-jsonschema"
    files = [FOLDER / "compose.yaml", FOLDER / "gpu.yaml"]
    command: list[str | Path] = [checker, "--builtin-schema", "vendor.compose-spec", *files]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("name", SERVICES)
def test_services_have_least_privileges(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert int(service["user"].split(":")[0]) > 0
    assert service["pids_limit"] > 0


@pytest.mark.parametrize("name", SERVICES)
def test_services_restart_have_health_checks_and_limit_logs(name: str) -> None:
    service = SERVICES[name]
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}


@pytest.mark.parametrize("name", SERVICES)
def test_images_have_a_version_tag(name: str) -> None:
    image, _, tag = SERVICES[name]["image"].partition(":")
    assert tag not in ("", "latest")
    if name in OURS:
        file = FOLDER / "../.." / SERVICES[name]["build"]["dockerfile"]
        assert file.resolve().parent == DOCKER.resolve()
        assert file.is_file()
        assert image == f"taco-{file.stem}"
        assert tag == __version__


def test_a_volume_has_one_writer_and_other_mounts_are_read_only() -> None:
    mounted = [volume for s in SERVICES.values() for volume in s.get("volumes", ())]
    own = [volume for volume in mounted if volume.split(":")[0] in COMPOSE["volumes"]]
    assert len(own) == len(set(own)) == len(COMPOSE["volumes"])
    assert {volume.split(":")[2] for volume in mounted if volume not in own} == {"ro"}


def test_mounted_files_exist() -> None:
    sources = {volume.split(":")[0] for s in SERVICES.values() for volume in s.get("volumes", ())}
    files = sources - set(COMPOSE["volumes"]) - {"./models"}  # the user's variable
    assert len(files) >= 4
    assert [file for file in files if not (FOLDER / file).exists()] == []


def test_ports_are_published_on_localhost_only() -> None:
    for name, service in SERVICES.items():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name
            assert not INTERNAL.issuperset(service["networks"]), f"no client reaches {name}"


def test_only_published_services_reach_the_internet() -> None:
    outside = {name for name, s in SERVICES.items() if not INTERNAL.issuperset(s["networks"])}
    assert outside == {name for name, service in SERVICES.items() if "ports" in service}


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("redis", {"gateway-1", "gateway-2"}),
        ("grafana", {"prometheus", "license-server"}),
        ("scheduler", {*OURS, "prometheus"} - {"scheduler"}),
    ],
)
def test_networks_separate(name: str, others: set[str]) -> None:
    networks = set(SERVICES[name]["networks"])
    meets = {other for other, service in SERVICES.items() if networks & set(service["networks"])}
    assert meets - {name} == others


def test_every_secret_is_a_file_of_the_services_that_need_it() -> None:
    used = [file for name in SERVICES for file in secret_files(COMPOSE, name).values()]
    assert {file.name for file in used} == set(COMPOSE["secrets"])
    keys = [file.name for file in used if file.suffix == ".key" and file.name != "gateway.key"]
    assert len(keys) == len(set(keys)), "a key is one service's alone"


@pytest.mark.parametrize("name", OURS)
def test_services_use_mutual_tls(name: str) -> None:
    flags = {"--tls-ca-file": "ca.crt", "--tls-cert-file": "tls.crt", "--tls-key-file": "tls.key"}
    for flag, file in flags.items():
        assert f"{flag}=/run/secrets/{file}" in SERVICES[name]["command"]
    role = re.sub(r"-\d$", "", name)
    assert secret_files(COMPOSE, name)["tls.key"].name == f"{role}.key"


def test_the_gpu_worker_differs_only_in_its_device() -> None:
    [(name, worker)] = read_compose({}, FOLDER / "gpu.yaml")["services"].items()
    cpu_only = ["--device=cpu", "--license-id=compose"]
    assert [flag for flag in SERVICES[name]["command"] if flag not in worker["command"]] == cpu_only
    assert [flag for flag in worker["command"] if flag not in SERVICES[name]["command"]] == [
        "--device=cuda"
    ]
    assert build_parser().parse_args(worker["command"]).device == "cuda"
    assert (FOLDER / "../.." / worker["build"]["dockerfile"]).is_file()


def test_prometheus_scrapes_every_taco_service_by_job_name() -> None:
    jobs = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["scrape_configs"]
    targets = {name: job["job_name"] for job in jobs for name in job["dns_sd_configs"][0]["names"]}
    assert targets == {name: f"taco-{re.sub(r'-[0-9]$', '', name)}" for name in OURS}
    for name in targets:
        assert set(SERVICES[name]["networks"]) & set(SERVICES["prometheus"]["networks"])


def test_promtool_accepts_the_prometheus_file(tmp_path: Path) -> None:
    text = (FOLDER / "prometheus.yaml").read_text()
    for name in secret_files(COMPOSE, "prometheus"):  # promtool checks that they exist
        (tmp_path / name).touch()
        text = text.replace(f"/run/secrets/{name}", name)
    (tmp_path / "prometheus.yaml").write_text(text)
    [alerts] = [v for v in SERVICES["prometheus"]["volumes"] if v.startswith("../helm")]
    source, target, _ = alerts.split(":")
    (tmp_path / Path(target).name).symlink_to((FOLDER / source).resolve())
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yaml")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "1 rule files found" in result.stdout


def test_every_variable_is_described() -> None:
    text = "".join(
        (FOLDER / name).read_text() for name in ("compose.yaml", "gpu.yaml", "prepare.sh")
    )
    page = (FOLDER.parents[1] / "docs" / "containers.md").read_text()
    for name in set(re.findall(r"\$\{([A-Z_]+)", text)):
        assert f"| `{name}` |" in page, name
