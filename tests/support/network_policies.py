"""What a release's NetworkPolicies let through, by the rules that Kubernetes has for them."""

from collections.abc import Iterator
from typing import Any, Literal

from support.charts import Labels, Release, matches

_NAMESPACE_NAME = "kubernetes.io/metadata.name"

Arrow = tuple[str, str, int]
Direction = Literal["Egress", "Ingress"]


def arrows(release: Release, namespace: str, direction: Direction) -> set[Arrow]:
    """Which component may connect to which other one, and to which port.

    Args:
        direction: what the policies of one end say; a connection needs both ends'.
    """
    workloads = release.workloads
    return {
        (source.component, target.component, port)
        for source in workloads
        for target in workloads
        for port in target.ports.values()
        if (
            _passes(release, namespace, direction, source.labels, target.labels, port)
            if direction == "Egress"
            else _passes(release, namespace, direction, target.labels, source.labels, port)
        )
    }


def ways(release: Release, labels: Labels, direction: Direction) -> set[tuple[str, int]]:
    """All that the policies of a pod allow: what the peers are (see `_kind`), and the ports."""
    return {
        (_kind(peer), port["port"])
        for rule in _rules(release, labels, direction)
        for peer in _peers(rule, direction)
        for port in rule["ports"]
    }


def _kind(peer: dict[str, Any]) -> str:
    """`addresses`, `pods elsewhere` or, in the release's own namespace, `pods`."""
    if "ipBlock" in peer:
        return "addresses"
    return "pods elsewhere" if "namespaceSelector" in peer else "pods"


def _passes(
    release: Release, namespace: str, direction: Direction, own: Labels, other: Labels, port: int
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


def _rules(release: Release, labels: Labels, direction: Direction) -> Iterator[dict[str, Any]]:
    for policy in _of(release, labels):
        yield from policy["spec"].get(direction.lower(), [])


def _peers(rule: dict[str, Any], direction: Direction) -> list[dict[str, Any]]:
    """An empty list would be everybody: the charts have none."""
    peers = rule["from" if direction == "Ingress" else "to"]
    assert peers
    return peers


def _is_peer(peer: dict[str, Any], namespace: str, labels: Labels) -> bool:
    if "ipBlock" in peer:  # addresses outside of the cluster
        return False
    is_in_namespace = matches(peer.get("namespaceSelector", {}), {_NAMESPACE_NAME: namespace})
    return is_in_namespace and matches(peer.get("podSelector", {}), labels)
