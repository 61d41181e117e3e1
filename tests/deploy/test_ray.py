"""deploy/ray: the files for KubeRay, `ray up` and the image."""

import copy
import re
import shlex
import warnings
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from support.dockerfiles import ROOT, installs, last, read_dockerfile, words
from support.kubernetes_schemas import NEWEST, OLDEST, mistakes
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import given
from taco_llm.args.gateway_args import GatewayArgs
from taco_llm.args.replica_args import DEFAULT_PORT, ReplicaArgs
from taco_llm.cli.main import build_parser
from taco_llm.cli.options import collect

RAY = ROOT / "deploy" / "ray"
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all((RAY / "raycluster.yaml").read_text()))
CLUSTER = DOCUMENTS[0]
HEAD = CLUSTER["spec"]["headGroupSpec"]
WORKERS = CLUSTER["spec"]["workerGroupSpecs"][0]

every_group = pytest.mark.parametrize("group", [HEAD, WORKERS], ids=["head", "workers"])


def container(group: dict[str, Any]) -> dict[str, Any]:
    [only] = group["template"]["spec"]["containers"]
    return dict(only)


def commands(group: dict[str, Any]) -> list[list[str]]:
    """Commands that a container's shell runs, in order."""
    assert container(group)["command"] == ["/bin/bash", "-c"]
    [script] = container(group)["args"]
    return [shlex.split(command) for command in script.split("&&")]


def ray_start(words: list[str]) -> dict[str, Any]:
    """Options of `ray start …`, parsed by Ray."""
    with warnings.catch_warnings():  # warnings of Ray's imports
        warnings.simplefilter("ignore")
        from ray.scripts.scripts import start
    assert words[:2] == ["ray", "start"]
    return dict(start.make_context("start", words[2:]).params)


def served() -> dict[str, Any]:
    """Options of the head's `taco_llm serve …`, checked by every table of options."""
    words = commands(HEAD)[-1]
    assert words[:2] == ["exec", "taco_llm"]
    namespace = build_parser().parse_args(words[2:])
    values = collect(namespace.parser, namespace)
    for table in (EngineArgs, GatewayArgs, ReplicaArgs):
        table(**given(table, values))
    return values


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_objects_match_the_kubernetes_and_kuberay_schemas(version: str) -> None:
    for document in DOCUMENTS:
        assert mistakes(document, version) == []
    for group in (HEAD, WORKERS):
        template = group["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        assert mistakes(pod, version) == []


def test_unknown_fields_are_rejected() -> None:
    document = copy.deepcopy(CLUSTER)
    document["spec"]["headGroupSpec"]["replicas"] = 1
    assert len(mistakes(document, NEWEST)) == 1


def test_commands_run_unchanged_and_receive_signals() -> None:
    assert CLUSTER["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"
    for group in (HEAD, WORKERS):
        assert commands(group)[-1][0] == "exec"


def test_each_replica_has_a_node() -> None:
    values = served()
    count = values["data_parallel_size"]
    assert values["distributed_executor_backend"] == "ray"
    # Nodes may join after the command starts, when `auto` would find no GPU.
    assert values["device"] == "cuda"
    assert {WORKERS[name] for name in ("replicas", "minReplicas", "maxReplicas")} == {count}
    node = ray_start(commands(WORKERS)[-1][1:])
    assert node["num_gpus"] == 1 == int(container(WORKERS)["resources"]["limits"]["nvidia.com/gpu"])
    assert node["num_cpus"] == int(container(WORKERS)["resources"]["requests"]["cpu"])
    assert node["block"]


def test_nodes_find_the_head() -> None:
    head = ray_start(commands(HEAD)[1])
    node = ray_start(commands(WORKERS)[-1][1:])
    assert (head["head"], head["num_cpus"]) == (True, 0)
    assert not head["block"]
    # KubeRay's name of the head's service.
    assert node["address"] == f"{CLUSTER['metadata']['name']}-head-svc:{head['port']}"


def test_ports_match_the_commands() -> None:
    ports = {port["name"]: port["containerPort"] for port in container(HEAD)["ports"]}
    values = served()
    assert ports == {
        "http": values.get("port", 8000),
        "admin": values["admin_port"],
        "scheduler": DEFAULT_PORT,
        "gcs": ray_start(commands(HEAD)[1])["port"],
    }
    [port] = container(WORKERS)["ports"]
    node = ray_start(commands(WORKERS)[-1][1:])
    assert port["containerPort"] == node["node_manager_port"]


@every_group
def test_pods_have_no_privileges(group: dict[str, Any]) -> None:
    spec = group["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 10001
    assert container(group)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounted = {mount["name"] for mount in container(group)["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}


@every_group
def test_nodes_read_the_token_from_a_file(group: dict[str, Any]) -> None:
    environment = {entry["name"]: entry["value"] for entry in container(group)["env"]}
    assert environment["RAY_AUTH_MODE"] == "token"
    mounts = {mount["name"]: mount["mountPath"] for mount in container(group)["volumeMounts"]}
    assert environment["RAY_AUTH_TOKEN_PATH"] == f"{mounts['ray-token']}/auth_token"


@every_group
def test_probes_replace_those_of_kuberay(group: dict[str, Any]) -> None:
    """KubeRay's ask Ray's dashboard, which the image does not have."""
    names = {port["name"] for port in container(group)["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container(group)[probe]
        assert (asked.get("httpGet") or asked["tcpSocket"])["port"] in names


def test_only_nodes_reach_the_ports_of_ray() -> None:
    of_ray, of_http = (x["spec"] for x in DOCUMENTS if x["kind"] == "NetworkPolicy")
    assert of_ray["ingress"] == [{"from": [{"podSelector": of_ray["podSelector"]}]}]
    monitoring = {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}
    peers = {port["port"]: rule["from"] for rule in of_http["ingress"] for port in rule["ports"]}
    assert peers == {
        8000: [{"namespaceSelector": {}}],
        9000: [{"namespaceSelector": monitoring}],  # /drain needs no key
    }


def test_the_ray_up_configuration() -> None:
    config = prepare_config(yaml.safe_load((RAY / "cluster.yaml").read_text()))
    validate_config(config)
    assert config["max_workers"] == len(config["provider"]["worker_ips"])
    for group in ("head", "worker"):
        *_, command = config[f"{group}_start_ray_commands"]
        assert "RAY_AUTH_MODE=token" in command
        options = ray_start(shlex.split(command[command.index("ray start") :]))
        assert options["head"] == (group == "head")


def test_the_image_has_all_services() -> None:
    instructions = read_dockerfile(RAY / "ray.Dockerfile")
    assert installs(instructions)[-1].endswith('[gateway,scheduler,gpu,draft,ray]"')
    assert last(instructions, "USER") == "10001:10001"
    assert words(instructions, "ENTRYPOINT") == ["taco_llm"]
    namespace = build_parser().parse_args(words(instructions, "CMD"))
    ReplicaArgs(**given(ReplicaArgs, collect(namespace.parser, namespace)))
    # Two files pin Ray's version.
    pinned = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert CLUSTER["spec"]["rayVersion"] == pinned[1]
