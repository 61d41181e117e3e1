"""The license server's chart, installed as the documents say."""

from pathlib import Path
from typing import Any

import pytest

from support.charts import LICENSE_SERVER, Release, helm, parsed, render

REDIS = {"url": "rediss://redis.redis.svc:6380/0", "secretName": "redis"}


def test_the_packaged_chart_installs_into_kube_system(tmp_path: Path) -> None:
    helm("package", LICENSE_SERVER, "--destination", tmp_path)
    (archive,) = tmp_path.glob("taco-license-server-*.tgz")
    repository = ("--set", "global.repository=registry.example.com/team")
    release = parsed(helm("template", "--generate-name", *repository, archive))
    assert {d["metadata"]["namespace"] for d in release.documents} == {"kube-system"}
    service = release.named("Service", "taco-license-server")
    assert service["spec"]["type"] == "ClusterIP"
    assert service["spec"]["ports"] == [{"name": "http", "port": 10080, "targetPort": "http"}]
    (server,) = release.workloads
    version = archive.name.removeprefix("taco-license-server-").removesuffix(".tgz")
    image = f"registry.example.com/team/taco-license-server:{version}"
    assert server.container["image"] == image


def test_one_server_has_its_own_volume() -> None:
    release = render(LICENSE_SERVER)
    (server,) = release.workloads
    assert server.document["spec"]["strategy"] == {"type": "Recreate"}
    assert server.container["args"] == ["license", "serve", "--data-dir=/var/lib/taco-license"]
    assert release.of_kind("PersistentVolumeClaim")
    assert not release.of_kind("PodDisruptionBudget")


@pytest.mark.parametrize(
    ("storage", "volume"),
    [
        ({"enabled": False}, {"emptyDir": {}}),
        ({"existingClaim": "mine"}, {"persistentVolumeClaim": {"claimName": "mine"}}),
    ],
)
def test_the_volume_may_be_given_or_left_out(
    storage: dict[str, Any], volume: dict[str, Any]
) -> None:
    release = render(LICENSE_SERVER, values={"storage": storage})
    (server,) = release.workloads
    assert server.volumes["data"] == {"name": "data"} | volume
    assert not release.of_kind("PersistentVolumeClaim")


def test_several_servers_share_redis_and_roll_one_by_one() -> None:
    release = render(LICENSE_SERVER, values={"replicas": 3, "redis": REDIS})
    (server,) = release.workloads
    assert server.document["spec"]["replicas"] == 3
    assert server.document["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert server.container["args"] == [
        "license",
        "serve",
        "--redis-url=rediss://redis.redis.svc:6380/0",
        "--redis-password-file=/etc/taco/redis/password",
    ]
    assert release.of_kind("PodDisruptionBudget")
    assert not release.of_kind("PersistentVolumeClaim")
    (policy,) = release.of_kind("NetworkPolicy")
    ports = [port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]]
    assert ports == [53, 53, 6380]


def test_public_keys_are_files_and_new_ones_roll_the_server() -> None:
    first = render(LICENSE_SERVER, values={"publicKeys": {"b.pub": "two", "a.pub": "one"}})
    second = render(LICENSE_SERVER, values={"publicKeys": {"b.pub": "two", "a.pub": "other"}})
    (config,) = first.of_kind("ConfigMap")
    assert config["data"] == {"a.pub": "one", "b.pub": "two"}
    arguments = first.workloads[0].container["args"]
    assert arguments[-3:] == [
        "--public-key",
        "/etc/taco/public-keys/a.pub",
        "/etc/taco/public-keys/b.pub",
    ]
    assert _annotations(first) != _annotations(second)


def _annotations(release: Release) -> dict[str, str]:
    return release.workloads[0].document["spec"]["template"]["metadata"]["annotations"]


def test_by_default_any_client_may_connect_and_the_server_connects_to_none() -> None:
    (policy,) = render(LICENSE_SERVER).of_kind("NetworkPolicy")
    (rule,) = policy["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == [10080]
    assert "egress" not in policy["spec"]
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    policy = {"dnsPorts": [5353], "redis": []}
    elsewhere = render(LICENSE_SERVER, values={"redis": REDIS, "networkPolicy": policy})
    (policy,) = elsewhere.of_kind("NetworkPolicy")
    assert [port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]] == [
        5353
    ] * 2
    closed = render(LICENSE_SERVER, values={"networkPolicy": {"clients": []}})
    (policy,) = closed.of_kind("NetworkPolicy")
    assert "ingress" not in policy["spec"]


def test_with_mutual_tls_probes_see_the_port_and_prometheus_has_a_certificate() -> None:
    release = render(
        LICENSE_SERVER,
        values={
            "tls": {"enabled": True, "issuer": {"name": "internal"}},
            "serviceMonitor": {"enabled": True},
        },
    )
    (server,) = release.workloads
    assert server.container["livenessProbe"]["tcpSocket"] == {"port": "http"}
    names = {c["spec"]["secretName"]: c["spec"]["dnsNames"] for c in release.of_kind("Certificate")}
    (monitor,) = release.of_kind("ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    secret = endpoint["tlsConfig"]["keySecret"]["name"]
    assert endpoint["scheme"] == "https"
    assert names == {
        "taco-license-server-tls": ["license-server.taco.internal"],
        secret: ["client.taco.internal"],
    }


def test_the_notes_are_the_commands_of_the_documents() -> None:
    notes = helm("install", "--generate-name", LICENSE_SERVER, "--dry-run=client")
    commands = [
        "LICENSE_SERVER_IP=$(kubectl get svc -n kube-system taco-license-server"
        ' -o jsonpath="{.spec.clusterIP}")',
        "curl http://${LICENSE_SERVER_IP}:10080",
        'curl -X POST -F "file=@$LICENSE_FILE_NAME" http://${LICENSE_SERVER_IP}:10080/ls',
        "curl http://${LICENSE_SERVER_IP}:10080/ls/view",
    ]
    lines = [line.strip() for line in notes.splitlines()]
    assert [line for line in lines if line in commands] == commands
