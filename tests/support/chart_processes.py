"""A chart's pods as plain processes, in the way in which the compose file's services run here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.charts import Release, Workload

Files = Mapping[str, Mapping[str, str]]


def as_compose(release: Release, directory: Path, secrets: Files) -> Any:
    """What `support.compose.Topology` runs: the pods' commands, environments and readiness probes.

    Args:
        directory: the topology's; volumes become folders there.
        secrets: the content of each Secret, by name.
    """
    services = {}
    for workload in release.workloads:
        name = workload.document["metadata"]["name"]
        services[name] = _service(name, workload) | {
            "volumes": [*_volumes(name, workload, directory, secrets)]
        }
    return {"services": services}


def _service(name: str, workload: Workload) -> dict[str, Any]:
    container = workload.container
    arguments = [argument.replace("$(POD_IP)", name) for argument in container["args"]]
    service: dict[str, Any] = {
        "environment": {
            variable["name"]: variable.get("value", "node-1")
            for variable in container.get("env", [])
        },
        "healthcheck": {"test": ["CMD", "python", "-c", _check(name, workload)]},
    }
    if "command" in container:
        return service | {"command": [*container["command"], *arguments]}
    return service | {"command": arguments, "build": "the image's entry point"}


def _check(name: str, workload: Workload) -> str:
    probe = workload.container["readinessProbe"]
    how = probe.get("httpGet") or probe["tcpSocket"]
    address = f"{name}:{workload.ports[how['port']]}"
    if "path" in how:
        return f"import urllib.request as r; r.urlopen('http://{address}{how['path']}')"
    return f"import socket; socket.create_connection('{address}'.split(':'))"


def _volumes(name: str, workload: Workload, directory: Path, secrets: Files) -> list[str]:
    """`folder:where it is mounted`, as in a compose file; /tmp is this machine's."""
    volumes = []
    for mount in workload.container["volumeMounts"]:
        if mount["mountPath"] == "/tmp":
            continue
        folder = f"{name}-{mount['name']}"
        (directory / folder).mkdir()
        source = workload.volumes[mount["name"]].get("secret")
        for file, text in secrets[source["secretName"]].items() if source else ():
            (directory / folder / file).write_text(text)
        volumes.append(f"{folder}:{mount['mountPath']}")
    return volumes
