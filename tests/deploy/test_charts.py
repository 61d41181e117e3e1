"""Rules for every rendered object, for all example values."""

import functools
import ipaddress
import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import pytest

from support.chart_commands import accepted
from support.charts import (
    LICENSE_SERVER,
    PLATFORM,
    Document,
    Release,
    Workload,
    example,
    flag_values,
    render,
)
from support.kubernetes_schemas import NEWEST, OLDEST, mistakes
from support.network_policies import ways

LICENSE_URL = "redis://redis.redis.svc:6379/1"

RELEASES: dict[str, Callable[[], Release]] = {
    "demo-cpu": functools.partial(example, "demo-cpu"),
    "gpu": functools.partial(example, "gpu"),
    "own-secrets": functools.partial(example, "own-secrets"),
    "everything": functools.partial(example, "everything"),
    "license": functools.cache(lambda: render(LICENSE_SERVER)),
    "licenses-in-redis": functools.cache(
        lambda: render(
            LICENSE_SERVER,
            values={
                "replicas": 2,
                "redis": {"url": LICENSE_URL, "secretName": "redis"},
                "publicKeys": {"a.pub": "key a", "b.pub": "key b"},
                "adminToken": {"secretName": "admin"},
                "tls": {"enabled": True, "issuer": {"name": "internal"}},
                "serviceMonitor": {"enabled": True},
            },
        )
    ),
}

# Objects that the operator must create, named in the values.
GIVEN: dict[str, set[str]] = {
    "demo-cpu": set(),
    "gpu": {"Secret/hub-token", "Secret/taco-api-keys", "Secret/llm-example-com"},
    "own-secrets": {
        "Secret/redis",
        *(f"Secret/{role}-cert" for role in ("gateway", "scheduler", "worker")),
    },
    "everything": {
        "Secret/llm-example-com",
        "Secret/taco-redis",
        "Secret/registry",
        "PersistentVolumeClaim/models",
    },
    "license": set(),
    "licenses-in-redis": {"Secret/redis", "Secret/admin"},
}


@pytest.fixture(params=RELEASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def release(name: str) -> Release:
    return RELEASES[name]()


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_field_is_in_the_kubernetes_schema(release: Release, version: str) -> None:
    found = {
        f"{document['kind']}/{document['metadata']['name']}": mistakes(document, version)
        for document in release.documents
    }
    assert not {where: what for where, what in found.items() if what}


def test_the_schemas_reject_invalid_objects() -> None:
    (document,) = (w.document for w in example("gpu").workloads if w.component == "worker")
    pod = document["spec"]["template"]["spec"]
    wrong = document | {"spec": document["spec"] | {"template": {"spec": pod | {"hostnme": "a"}}}}
    monitor = example("everything").of_kind("PodMonitor")[0]
    assert any("hostnme" in mistake for mistake in mistakes(wrong, OLDEST))
    assert mistakes(monitor | {"spec": monitor["spec"] | {"endpoints": []}}, OLDEST)


def test_names_are_unique_and_short_enough(release: Release) -> None:
    names = [(document["kind"], document["metadata"]["name"]) for document in release.documents]
    assert len(names) == len(set(names))
    for kind, name in names:
        limit = 253 if kind == "ConfigMap" else 63
        assert re.fullmatch(r"[a-z0-9][-a-z0-9]*", name)
        assert len(name) <= limit
    assert all(document["metadata"]["namespace"] for document in release.documents)


def test_labels_are_valid_in_kubernetes(release: Release) -> None:
    labels = [document["metadata"]["labels"] for document in release.documents]
    labels += [workload.labels for workload in release.workloads]
    for name, value in (item for some in labels for item in some.items()):
        assert re.fullmatch(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", name)
        assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", value)


def test_ip_block_exceptions_are_inside_their_block(release: Release) -> None:
    rules = [
        rule
        for policy in release.of_kind("NetworkPolicy")
        for rule in [*policy["spec"].get("ingress", ()), *policy["spec"].get("egress", ())]
    ]
    peers = [peer for rule in rules for peer in [*rule.get("from", ()), *rule.get("to", ())]]
    for block in (peer["ipBlock"] for peer in peers if "ipBlock" in peer):
        network = ipaddress.ip_network(block["cidr"])
        for inside in map(ipaddress.ip_network, block.get("except", ())):
            assert isinstance(inside, type(network))
            assert network.supernet_of(inside)  # type: ignore[arg-type]


def test_pods_run_with_least_privileges(release: Release) -> None:
    for workload in release.workloads:
        pod, container = workload.pod, workload.container
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        account = release.named("ServiceAccount", pod["serviceAccountName"])
        assert account["automountServiceAccountToken"] is False
        assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC", "initContainers"}


def test_pods_have_resources_and_pinned_images(release: Release) -> None:
    for workload in release.workloads:
        container = workload.container
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert "memory" in limits
        assert all(
            quantity(requests[name]) <= quantity(limits[name]) for name in requests.keys() & limits
        )
        image, _, tag = container["image"].rpartition(":")
        assert image
        assert tag[0].isdigit()
        assert workload.document["spec"].get("replicas", 1) >= 1
        assert 10 <= workload.pod["terminationGracePeriodSeconds"] <= 120


def quantity(text: str) -> float:
    """Parses `500m`, `2`, `16Gi` as a number."""
    units = {"": 1.0, "m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    match = re.fullmatch(r"([0-9.]+)(\w*)", text)
    assert match is not None
    return float(match[1]) * units[match[2]]


def test_probes_and_services_use_ports_of_the_pods(release: Release) -> None:
    for workload in release.workloads:
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            probe = workload.container[kind]
            (how,) = (probe[how] for how in ("httpGet", "tcpSocket") if how in probe)
            assert how["port"] in workload.ports
    for service in release.of_kind("Service"):
        (target,) = release.selected({"matchLabels": service["spec"]["selector"]})
        ports = service["spec"].get("ports", [])
        assert {port["targetPort"] for port in ports} <= target.ports.keys()
    for monitor in release.of_kind("PodMonitor"):
        (target,) = release.selected(monitor["spec"]["selector"])
        assert {end["port"] for end in monitor["spec"]["podMetricsEndpoints"]} <= {*target.ports}


def test_selectors_match_exactly_their_component(release: Release) -> None:
    for workload in release.workloads:
        assert release.selected(workload.document["spec"]["selector"]) == [workload]
        for constraint in workload.pod.get("topologySpreadConstraints", []):
            assert release.selected(constraint["labelSelector"]) == [workload]
    for budget in release.of_kind("PodDisruptionBudget"):
        (workload,) = release.selected(budget["spec"]["selector"])
        assert workload.document["metadata"]["name"] == budget["metadata"]["name"]
    for policy in release.of_kind("NetworkPolicy"):
        assert release.selected(policy["spec"]["podSelector"])


def test_autoscaled_objects_exist_and_start_with_min_replicas(release: Release) -> None:
    scalers = release.of_kind("HorizontalPodAutoscaler", "ScaledObject")
    least = {}
    for spec in (scaler["spec"] for scaler in scalers):
        target = spec["scaleTargetRef"]
        minimum = spec.get("minReplicas") or spec["minReplicaCount"]
        least[f"{target['kind']}/{target['name']}"] = minimum
    assert len(least) == len(scalers)
    assert (
        least.items() <= {w.key: w.document["spec"]["replicas"] for w in release.workloads}.items()
    )


def test_claims_are_kept_on_uninstall(release: Release) -> None:
    for claim in release.of_kind("PersistentVolumeClaim"):
        assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_files_are_mounted_once_and_read_only(release: Release) -> None:
    writable = {"tmp", "models-cache", "kv-disk", "data"}
    for workload in release.workloads:
        mounts = workload.container["volumeMounts"]
        assert sorted(mount["name"] for mount in mounts) == sorted(workload.volumes)
        assert len({mount["mountPath"] for mount in mounts}) == len(mounts)
        assert all(mount.get("readOnly") for mount in mounts if mount["name"] not in writable)
        for volume in workload.volumes.values():
            assert volume.get("secret", {}).get("defaultMode", 0o440) == 0o440


def test_referenced_objects_exist(name: str, release: Release) -> None:
    made = {f"{d['kind']}/{d['metadata']['name']}" for d in release.documents}
    made |= {f"Secret/{d['spec']['secretName']}" for d in release.of_kind("Certificate")}
    wanted = {what for workload in release.workloads for what in _referred_to(workload)}
    wanted |= {
        f"Secret/{tls['secretName']}"
        for ingress in release.of_kind("Ingress")
        for tls in ingress["spec"]["tls"]
    }
    assert wanted - made == GIVEN[name]


def _referred_to(workload: Workload) -> set[str]:
    found = {f"Secret/{secret['name']}" for secret in workload.pod.get("imagePullSecrets", [])}
    for volume in workload.volumes.values():
        for source, kind, key in (
            ("secret", "Secret", "secretName"),
            ("configMap", "ConfigMap", "name"),
            ("persistentVolumeClaim", "PersistentVolumeClaim", "claimName"),
        ):
            if source in volume:
                found.add(f"{kind}/{volume[source][key]}")
    return found


def test_no_secret_is_in_an_environment_variable(release: Release) -> None:
    for workload in release.workloads:
        for variable in workload.container.get("env", []):
            source: Document = variable.get("valueFrom", {})
            assert source.keys() <= {"fieldRef"}
        assert "envFrom" not in workload.container
    assert not release.of_kind("Secret")  # Helm would keep secrets in its release history


def test_commands_are_accepted_by_the_services(release: Release) -> None:
    for workload in release.workloads:
        container = workload.container
        if "taco-" not in container["image"]:
            continue
        namespace = accepted(_expanded(container))
        service = container["name"]
        assert namespace.command == {"license-server": "license", "worker-cpu": "worker"}.get(
            service, service
        )
        for port_flag, port in (("admin_port", "admin"), ("grpc_port", "grpc")):
            if port_flag in namespace:
                assert getattr(namespace, port_flag) == workload.ports[port]


def _expanded(container: Document) -> list[str]:
    """Expands the arguments like a kubelet; an undefined variable would stay unchanged.

    Mounted files are replaced by this file, because some commands check that they exist.
    """
    names = {variable["name"] for variable in container.get("env", [])}
    arguments = [re.sub(r"\$\((\w+)\)", lambda m: f"<{m[1]}>", arg) for arg in container["args"]]
    used = {name for arg in arguments for name in re.findall(r"<(\w+)>", arg)}
    assert used <= names
    return [re.sub(r"^(--[\w-]+=)?/etc/taco/.*", rf"\g<1>{__file__}", arg) for arg in arguments]


def test_files_in_flags_are_mounted(release: Release) -> None:
    for workload in release.workloads:
        folders = {mount["mountPath"] for mount in workload.container["volumeMounts"]}
        values = [value for _, value in flag_values(workload.container["args"])]
        values += [arg for arg in workload.container["args"] if arg.startswith("/")]
        for value in values:
            if value.startswith("/"):
                assert folders & {value, *map(str, PurePosixPath(value).parents)}, value


def test_ingress_policies_use_ports_of_the_pods(release: Release) -> None:
    for workload in release.workloads:
        assert {port for _, port in ways(release, workload.labels, "Ingress")} <= {
            *workload.ports.values()
        }


def test_pods_mount_the_certificate_of_their_role(release: Release) -> None:
    roles = {
        certificate["spec"]["secretName"]: certificate["spec"]["dnsNames"]
        for certificate in release.of_kind("Certificate")
        if not certificate["spec"].get("isCA")
    }
    for workload in release.workloads:
        if "tls" in workload.volumes and roles:
            role = workload.container["name"].removesuffix("-cpu")
            secret = workload.volumes["tls"]["secret"]["secretName"]
            assert roles[secret][0] == f"{role}.taco.internal"
    for certificate in release.of_kind("Certificate"):
        spec: dict[str, Any] = certificate["spec"]
        usages = {"digital signature", "server auth", "client auth"}
        assert spec.get("isCA") or usages == {*spec["usages"]}


def test_a_release_name_may_be_a_number() -> None:
    everything = PLATFORM.parent / "examples" / "everything.yaml"
    odd = {"model": {"revision": "1: #2"}, "draftWorker": {"model": "a: #b"}}
    release = render(PLATFORM, everything, values=odd, name="12345", namespace="678")
    assert not [mistake for document in release.documents for mistake in mistakes(document, OLDEST)]
    for service in release.of_kind("Service"):
        assert re.fullmatch(r"[a-z][-a-z0-9]*", service["metadata"]["name"])
    assert "--revision=1: #2" in release.workload("worker").container["args"]
    assert "--speculative-model=a: #b" in release.workload("draft-worker").container["args"]


def test_long_release_names_give_valid_object_names() -> None:
    everything = PLATFORM.parent / "examples" / "everything.yaml"
    release = render(PLATFORM, everything, name="a" * 53)
    for workload in release.workloads:
        # Suffixes of a StatefulSet's revisions and a Deployment's pods.
        assert len(workload.document["metadata"]["name"]) + len("-1234567890") <= 64
    test_names_are_unique_and_short_enough(release)
