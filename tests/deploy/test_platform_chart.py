"""Objects that the platform's chart renders for given values."""

import re
import textwrap
from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml

from support.api_server import api_server
from support.chart_commands import accepted
from support.charts import (
    EXAMPLES,
    PLATFORM,
    ROOT,
    Release,
    Workload,
    example,
    helm,
    parsed,
    render,
)
from support.network_policies import Direction, arrows, ways

DEMO = {"model": {"name": "demo"}}
NAMESPACE = "llm"


def rendered(**values: Any) -> Release:
    return render(PLATFORM, values=DEMO | values)


def flags(workload: Workload) -> set[str]:
    return {*workload.container["args"]}


def test_by_default_there_are_gateways_a_scheduler_and_a_worker_with_a_gpu() -> None:
    release = rendered()
    replicas = {w.component: w.document["spec"]["replicas"] for w in release.workloads}
    assert replicas == {"gateway": 2, "scheduler": 1, "worker": 1}
    worker = release.workload("worker")
    assert worker.container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert "--device=cuda" in flags(worker)
    assert worker.document["spec"]["strategy"]["rollingUpdate"] == {
        "maxSurge": 0,  # a spare GPU is rare
        "maxUnavailable": 1,
    }


def test_each_service_can_be_left_out() -> None:
    release = rendered(
        gateway={"enabled": False},
        scheduler={"enabled": False, "address": "scheduler.other:7101"},
        worker={"enabled": False},
        workerCpu={"enabled": True},
    )
    (worker,) = release.workloads
    assert worker.component == "worker-cpu"
    assert {"--scheduler=scheduler.other:7101", "--device=cpu"} <= flags(worker)
    assert ("addresses", 7101) in ways(release, worker.labels, "Egress")
    assert not release.of_kind("Service")


@pytest.mark.parametrize("direction", ["Egress", "Ingress"])
def test_network_policies_allow_only_the_documented_traffic(direction: Direction) -> None:
    dialling = {"gateway", "worker", "worker-cpu", "draft-worker"}
    found = arrows(example("everything"), NAMESPACE, direction)
    # All pods of the namespace may be clients of the gateways.
    assert {arrow for arrow in found if arrow[1] != "gateway"} == {
        *((service, "scheduler", 7100) for service in dialling),
        ("gateway", "redis", 6379),
        ("scheduler", "redis", 6379),
    }


def test_open_ports_for_other_pods_are_listed() -> None:
    release = example("everything")
    names = ("pods elsewhere", 53)
    ingress = {
        w.component: ways(release, w.labels, "Ingress") - {("pods elsewhere", 9000)}
        for w in release.workloads
    }
    assert ingress.pop("gateway") == {("pods", 8000), ("pods", 7200)}
    assert ingress == {
        "scheduler": {("pods", 7100)},
        "worker": set(),
        "worker-cpu": set(),
        "draft-worker": set(),
        "redis": {("pods", 6379)},
    }
    egress = {w.component: ways(release, w.labels, "Egress") for w in release.workloads}
    to_scheduler = {names, ("pods", 7100)}
    assert egress == {
        "gateway": to_scheduler | {("pods", 6379)},
        "scheduler": {names, ("pods", 6379)},
        "worker": to_scheduler | {("pods elsewhere", 10080)},
        "worker-cpu": to_scheduler | {("pods elsewhere", 10080)},
        "draft-worker": to_scheduler,
        "redis": set(),
    }


def test_pods_of_another_release_can_be_allowed_to_the_scheduler() -> None:
    scheduler = rendered().workload("scheduler")
    other = {"podSelector": {"matchLabels": {"app.kubernetes.io/instance": "other"}}}
    elsewhere = other | {"namespaceSelector": {}}
    release = rendered(networkPolicy={"schedulerClients": [elsewhere]})
    opened = ways(release, scheduler.labels, "Ingress") - ways(
        rendered(), scheduler.labels, "Ingress"
    )
    assert opened == {("pods elsewhere", 7100)}


def test_dns_servers_and_ports_can_be_changed() -> None:
    openshift = {"matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}}
    policy = {"dns": [{"namespaceSelector": openshift}], "dnsPorts": [5353]}
    release = rendered(networkPolicy=policy, license={"mode": "off"})
    opened = ways(release, release.workload("scheduler").labels, "Egress")
    assert opened == {("pods elsewhere", 5353)}


def test_only_prometheus_may_read_metrics() -> None:
    release = rendered(networkPolicy={"prometheus": []})
    for workload in release.workloads:
        assert 9000 not in {port for _, port in ways(release, workload.labels, "Ingress")}


def test_only_models_from_the_hub_open_egress() -> None:
    for from_hub in (True, False):
        release = rendered(model={"name": "demo", "fromHub": from_hub})
        worker = release.workload("worker")
        is_offline = {"name": "HF_HUB_OFFLINE", "value": "1"} in worker.container.get("env", [])
        assert is_offline is not from_hub
        assert (("addresses", 443) in ways(release, worker.labels, "Egress")) is from_hub


def test_workers_load_compiled_code_from_their_own_volume() -> None:
    worker = rendered(model={"name": "a/b", "cache": {"existingClaim": "shared"}}).workload(
        "worker"
    )
    env = {variable["name"]: variable.get("value") for variable in worker.container["env"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in worker.container["volumeMounts"]}
    volume = worker.volumes[mounts[str(PurePosixPath(env["TRITON_CACHE_DIR"]).parent)]]
    assert volume.keys() == {"name", "emptyDir"}


def test_policies_allow_the_ports_of_external_addresses() -> None:
    release = example("own-secrets")
    to_redis = ("addresses", 6380)
    assert to_redis in ways(release, release.workload("scheduler").labels, "Egress")
    assert ("addresses", 10080) in ways(release, release.workload("worker").labels, "Egress")
    release = rendered(license={"serverAddress": "https://license.example.com"})
    to_server = ("pods elsewhere", 443)
    assert to_server in ways(release, release.workload("worker").labels, "Egress")


def test_gateways_connect_to_one_scheduler_and_find_several_in_redis() -> None:
    one = rendered(redis={"url": "redis://redis"}).workload("gateway")
    assert {"--scheduler=taco-scheduler:7100", "--redis-url=redis://redis"} <= flags(one)
    several = example("everything")
    gateway = flags(several.workload("gateway"))
    assert not any(flag.startswith("--scheduler=") for flag in gateway)
    (url,) = (flag for flag in gateway if flag.startswith("--redis-url="))
    assert url.startswith("--redis-url=rediss://taco-redis:6379/0?")
    assert "--advertise=$(POD_IP):7100" in flags(several.workload("scheduler"))


def test_scheduler_and_workers_know_the_draft_length() -> None:
    release = rendered(draftWorker={"enabled": True, "model": "small", "tokens": 7})
    for component in ("scheduler", "worker"):
        assert "--num-speculative-tokens=7" in flags(release.workload(component))


def test_grace_periods_cover_the_drain_timeouts() -> None:
    gateway = rendered(gateway={"preStopSeconds": 7, "drainSeconds": 50}).workload("gateway")
    assert gateway.container["lifecycle"]["preStop"] == {"sleep": {"seconds": 7}}
    assert "--drain-timeout=50" in flags(gateway)
    assert gateway.pod["terminationGracePeriodSeconds"] > 57
    release = rendered(scheduler={"workerDrainSeconds": 90})
    assert "--worker-drain-timeout=90" in flags(release.workload("scheduler"))
    assert release.workload("worker").pod["terminationGracePeriodSeconds"] > 90


def test_gateways_log_prompts_only_where_the_values_ask_for_it() -> None:
    assert "--enable-log-requests" not in flags(rendered().workload("gateway"))
    gateway = rendered(gateway={"logRequests": True}).workload("gateway")
    assert "--enable-log-requests" in flags(gateway)


def test_pods_of_a_lost_node_move_soon_except_those_with_a_disk() -> None:
    release = example("everything")
    seconds = {
        w.component: {
            toleration["key"].removeprefix("node.kubernetes.io/"): toleration["tolerationSeconds"]
            for toleration in w.pod.get("tolerations", [])
            if "tolerationSeconds" in toleration
        }
        for w in release.workloads
    }
    soon = {"not-ready": 30, "unreachable": 30}
    bound: dict[str, dict[str, int]] = {"worker": {}, "redis": {}}
    stateless = ("gateway", "scheduler", "worker-cpu", "draft-worker")
    assert seconds == dict.fromkeys(stateless, soon) | bound


def test_user_tolerations_precede_those_of_the_chart() -> None:
    own = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 5}
    gateway = rendered(gateway={"tolerations": [own]}, nodeLossSeconds=60).workload("gateway")
    first, second = gateway.pod["tolerations"]
    assert first == own
    assert (second["key"], second["tolerationSeconds"]) == ("node.kubernetes.io/not-ready", 60)


def test_each_worker_claims_a_kv_disk_that_holds_its_files() -> None:
    worker = rendered(worker={"kvDisk": {"enabled": True, "sizeGiB": 95}}).workload("worker")
    assert worker.document["kind"] == "StatefulSet"
    assert {"--kv-disk-path=/kv-disk", "--kv-disk-space=95"} <= flags(worker)
    # Blocks pass through host memory on their way to the disk.
    assert {"--enable-prefix-cache-offload", "--swap-space=16"} <= flags(worker)
    accepted(worker.container["args"])
    (claim,) = worker.document["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "105Gi"


def test_a_cpu_worker_uses_its_node_name_for_the_license() -> None:
    release = example("everything")
    for component in ("worker", "worker-cpu"):
        workload = release.workload(component)
        env = {variable["name"]: variable for variable in workload.container["env"]}
        assert "--license=required" in flags(workload)
        assert env["TACO_LS_ADDR"]["value"].startswith("https://taco-license-server.kube-system")
        assert ("TACO_LICENSE_ID" in env) is (component == "worker-cpu")
    assert "10080" not in str(rendered(license={"mode": "off"}).documents)


def test_without_an_issuer_the_release_creates_its_own_authority() -> None:
    release = rendered(tls={"enabled": True})
    issuers = {issuer["metadata"]["name"]: issuer["spec"] for issuer in release.of_kind("Issuer")}
    assert issuers == {
        "taco-self-signed": {"selfSigned": {}},
        "taco-ca": {"ca": {"secretName": "taco-ca"}},
    }
    certificates = {c["metadata"]["name"]: c["spec"] for c in release.of_kind("Certificate")}
    assert certificates.pop("taco-ca")["isCA"]
    assert certificates.keys() == {"taco-gateway", "taco-scheduler", "taco-worker"}
    assert {c["issuerRef"]["name"] for c in certificates.values()} == {"taco-ca"}


@pytest.mark.parametrize("is_enabled", [False, True])
def test_the_scheduler_speaks_plaintext_only_without_certificates(is_enabled: bool) -> None:
    given = flags(rendered(tls={"enabled": is_enabled}).workload("scheduler"))
    assert ("--allow-insecure" in given) is not is_enabled
    assert any(flag.startswith("--tls-ca-file") for flag in given) is is_enabled


def test_given_certificates_are_not_requested() -> None:
    assert not example("own-secrets").of_kind("Certificate", "Issuer")
    made = example("everything").of_kind("Certificate")
    roles = {name for certificate in made for name in certificate["spec"]["dnsNames"]}
    services = ("gateway", "scheduler", "worker", "draft-worker", "redis", "client")
    assert roles == {f"{service}.taco.internal" for service in services} | {"taco-redis"}


def test_monitors_set_the_job_names_of_the_dashboards() -> None:
    monitors = example("everything").of_kind("PodMonitor")
    assert len(monitors) == 5
    for monitor in monitors:
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        labels = {label["targetLabel"]: label["replacement"] for label in endpoint["relabelings"]}
        service = monitor["metadata"]["name"].removeprefix("taco-").removesuffix("-cpu")
        assert labels == {"job": f"taco-{service}", "release": "taco"}
        assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_alerts_and_dashboards_come_from_the_chart_files() -> None:
    release = example("everything")
    (rule,) = release.of_kind("PrometheusRule")
    assert rule["spec"] == yaml.safe_load((PLATFORM / "files" / "alerts.yaml").read_text())
    shown: dict[str, str] = {}
    for dashboard in release.of_kind("ConfigMap"):
        assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
        shown |= dashboard["data"]
    files = (PLATFORM / "files" / "dashboards").glob("*.json")
    assert shown == {file.name: file.read_text() for file in files} != {}


def test_turning_autoscaling_on_keeps_the_running_pods() -> None:
    before = rendered(worker={"replicas": 5})
    values = ("--set", "model.name=demo,autoscaling.kind=hpa")
    scaled = rendered(autoscaling={"kind": "hpa"})
    with api_server(kinds_of=scaled, objects=[before.workload("worker").document]) as url:
        asks = ("--dry-run=server", "--is-upgrade", "--disable-openapi-validation")
        upgrade = ("--namespace", NAMESPACE, "--kube-apiserver", url, *asks)
        release = parsed(helm("template", "taco", PLATFORM, *values, *upgrade))
    replicas = {w.component: w.document["spec"]["replicas"] for w in release.workloads}
    assert replicas == {"gateway": 2, "scheduler": 1, "worker": 5}


def test_alerts_link_to_the_published_runbook() -> None:
    page = "https://docs.example.com/taco/alerts/"
    release = rendered(monitoring={"alerts": {"enabled": True, "runbookUrl": page}})
    (rules,) = release.of_kind("PrometheusRule")
    for rule in (rule for group in rules["spec"]["groups"] for rule in group["rules"]):
        assert rule["annotations"]["runbook_url"] == f"{page}#{rule['alert'].lower()}"
        assert "runbook" not in rule["annotations"]


def test_keda_queries_existing_metrics() -> None:
    scalers = example("everything").of_kind("ScaledObject")
    triggers = {s["metadata"]["name"]: s["spec"]["triggers"] for s in scalers}
    assert triggers.keys() == {"taco-gateway", "taco-worker", "taco-draft-worker"}
    assert [trigger["type"] for trigger in triggers["taco-gateway"]] == ["cpu"]
    documented = (ROOT / "docs" / "metrics.md").read_text()
    for trigger in triggers["taco-worker"] + triggers["taco-draft-worker"]:
        query = trigger["metadata"]["query"]
        names = re.findall(r"\w+:\w+", query)
        assert names
        assert all(f"`{name}" in documented for name in names)
        selector = '{job="taco-scheduler",namespace="llm",release="taco"}'
        assert query.count(selector) == len(names)


def test_horizontal_pod_autoscalers_use_the_metrics_of_the_documented_adapter() -> None:
    release = render(
        PLATFORM, EXAMPLES / "gpu.yaml", values={"draftWorker": {"enabled": True, "model": "a"}}
    )
    used = {
        metric["external"]["metric"]["name"]
        for scaler in release.of_kind("HorizontalPodAutoscaler")
        for metric in scaler["spec"]["metrics"]
        if metric["type"] == "External"
    }
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    (block,) = re.findall(r"```yaml\n( *rules:\n.*?)```", page, re.DOTALL)
    rules = yaml.safe_load(textwrap.dedent(block))["rules"]["external"]
    assert used == {rule["name"]["as"] for rule in rules}


def test_the_notes_give_commands_and_warnings() -> None:
    def notes(*sets: str) -> str:
        arguments = [flag for setting in sets for flag in ("--set", setting)]
        model = ("--set", "model.name=demo")
        return helm("install", "taco", PLATFORM, "--dry-run=client", *model, *arguments)

    assert "service/taco-gateway 8000:80" in notes()
    assert "no API keys are set" in notes()
    assert "no API keys are set" not in notes("gateway.apiKeys.secretName=keys")
    assert "networkPolicy.clients" in notes("gateway.service.type=LoadBalancer")
    assert "podMonitors" in notes("autoscaling.kind=hpa")
    assert "podMonitors" not in notes("autoscaling.kind=hpa", "monitoring.podMonitors.enabled=true")
    outside = "license.serverAddress=http://10.10.161.72:10080"
    assert "networkPolicy.licenseServer" in notes(outside)
    block = "networkPolicy.licenseServer[0].ipBlock.cidr=10.10.161.72/32"
    assert "networkPolicy.licenseServer" not in notes(outside, block)
