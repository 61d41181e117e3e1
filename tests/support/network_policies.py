"""What a release's NetworkPolicies let through, by the rules that Kubernetes has for them."""

from collections.abc import Iterator
from typing import Any

from support.charts import Labels, Release, matches

_NAMESPACE_NAME = "kubernetes.io/metadata.name"

Arrow = tuple[str, str, int]


def arrows(release: Release, namespace: str) -> set[Arrow]:
    """The pairs of components between which a connection is possible, and to which port."""
    workloads = release.workloads
    return {
        (source.component, target.component, port)
        for source in workloads
        for target in workloads
        for port in target.ports.values()
        if _passes(release, namespace, "Egress", source.labels, target.labels, port)
        and _passes(release, namespace, "Ingress", target.labels, source.labels, port)
    }


def ways(release: Release, labels: Labels, direction: str) -> set[tuple[str, int]]:
    """All that the policies of a pod allow, as what a peer is and to which port: `pods`,
    `pods elsewhere` and `addresses`."""
    found = set()
    for rule in _rules(release, labels, direction):
        for port in rule["ports"]:
            for peer in _peers(rule, direction):
                kind = "addresses" if "ipBlock" in peer else "pods"
                found.add(
                    (f"{kind} elsewhere" if "namespaceSelector" in peer else kind, port["port"])
                )
    return found


def _passes(
    release: Release, namespace: str, direction: str, own: Labels, other: Labels, port: int
) -> bool:
    if not any(direction in policy["spec"]["policyTypes"] for policy in _of(release, own)):
        return True
    return any(
        port in [allowed["port"] for allowed in rule["ports"]]
        and any(_is_peer(peer, namespace, other) for peer in _peers(rule, direction))
        for rule in _rules(release, own, direction)
    )


def _of(release: Release, labels: Labels) -> list[dict[str, Any]]:
    policies = release.of_kind("NetworkPolicy")
    return [policy for policy in policies if matches(policy["spec"]["podSelector"], labels)]


def _rules(release: Release, labels: Labels, direction: str) -> Iterator[dict[str, Any]]:
    for policy in _of(release, labels):
        yield from policy["spec"].get(direction.lower()) or []


def _peers(rule: dict[str, Any], direction: str) -> list[dict[str, Any]]:
    """An empty list would be everybody: the charts have none."""
    peers = rule["from" if direction == "Ingress" else "to"]
    assert peers
    return peers


def _is_peer(peer: dict[str, Any], namespace: str, labels: Labels) -> bool:
    if "ipBlock" in peer:  # addresses outside of the cluster
        return False
    is_in_namespace = matches(peer.get("namespaceSelector", {}), {_NAMESPACE_NAME: namespace})
    return is_in_namespace and matches(peer.get("podSelector", {}), labels)
