"""Renders the Helm charts with Helm itself, and looks things up in what comes out."""

import functools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "deploy" / "helm"
EXAMPLES = CHARTS / "examples"
PLATFORM = CHARTS / "taco-llm"
LICENSE_SERVER = CHARTS / "taco-license-server"
HELM = Path(sys.prefix) / "bin" / "helm"

Document = dict[str, Any]
Labels = Mapping[str, str]

_WORKLOADS = ("Deployment", "StatefulSet")


class ChartError(Exception):
    """Helm has refused the chart or its values; the message is Helm's own."""


def helm(*arguments: str | Path, standard_input: str | None = None) -> str:
    """What Helm printed.

    Raises:
        ChartError: it ended with an error.
    """
    assert HELM.exists(), f"{HELM} is missing: `make test` and `make charts` get it"
    done = subprocess.run(
        [HELM, *arguments], input=standard_input, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ChartError(done.stderr)
    return done.stdout


@dataclass(frozen=True, slots=True)
class Workload:
    """A Deployment or StatefulSet."""

    document: Document

    @property
    def key(self) -> str:
        return f"{self.document['kind']}/{self.document['metadata']['name']}"

    @property
    def component(self) -> str:
        """Such as `worker-cpu`; the license server, which has no other, is named by its chart."""
        labels = self.labels
        return labels.get("app.kubernetes.io/component", labels["app.kubernetes.io/name"])

    @property
    def labels(self) -> Labels:
        """Those of its pods."""
        return self.document["spec"]["template"]["metadata"]["labels"]

    @property
    def pod(self) -> Document:
        return self.document["spec"]["template"]["spec"]

    @property
    def container(self) -> Document:
        (container,) = self.pod["containers"]
        return container

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    @property
    def volumes(self) -> dict[str, Document]:
        claims = self.document["spec"].get("volumeClaimTemplates", [])
        claimed: dict[str, Document] = {claim["metadata"]["name"]: {} for claim in claims}
        return claimed | {volume["name"]: volume for volume in self.pod["volumes"]}


@dataclass(frozen=True, slots=True)
class Release:
    """All that a chart makes of some values."""

    documents: Sequence[Document]

    def of_kind(self, *kinds: str) -> list[Document]:
        return [document for document in self.documents if document["kind"] in kinds]

    def named(self, kind: str, name: str) -> Document:
        (found,) = (d for d in self.of_kind(kind) if d["metadata"]["name"] == name)
        return found

    @property
    def workloads(self) -> list[Workload]:
        return [Workload(document) for document in self.of_kind(*_WORKLOADS)]

    def workload(self, component: str) -> Workload:
        (found,) = (w for w in self.workloads if w.component == component)
        return found

    def selected(self, selector: Document) -> list[Workload]:
        """Those whose pods a label selector selects."""
        return [workload for workload in self.workloads if matches(selector, workload.labels)]


def matches(selector: Document, labels: Labels) -> bool:
    """Whether a label selector of Kubernetes selects what has these labels."""
    unknown = selector.keys() - {"matchLabels", "matchExpressions"}
    assert not unknown, unknown
    expressions = selector.get("matchExpressions", [])
    assert all(expression["operator"] == "In" for expression in expressions)
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(expression["key"]) in expression["values"] for expression in expressions
    )


def render(
    chart: Path,
    *files: Path,
    values: Mapping[str, Any] | None = None,
    name: str = "taco",
    namespace: str = "llm",
) -> Release:
    """What a chart makes of value files, and of `values` above them.

    Raises:
        ChartError: it refuses the values.
    """
    arguments: list[str | Path] = ["template", name, chart, "--namespace", namespace]
    for file in files:
        arguments += ["--values", file]
    arguments += ["--values", "-"]
    return parsed(helm(*arguments, standard_input=json.dumps(values or {})))


def parsed(text: str) -> Release:
    return Release([document for document in yaml.load_all(text, _Loader) if document])


@functools.cache
def example(name: str) -> Release:
    """The platform with the values of `deploy/helm/examples/NAME.yaml`."""
    return render(PLATFORM, EXAMPLES / f"{name}.yaml")


def flag_values(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name and value of each `--name=value`."""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name.startswith("--") and equals:
            yield name, value


class _Loader(yaml.CSafeLoader):
    """YAML in which a repeated key is an error, as it is for Kubernetes."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    doubles = {key for key in keys if keys.count(key) > 1}
    assert not doubles, f"{doubles} stand there twice: {node.start_mark}"
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
