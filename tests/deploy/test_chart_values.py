"""The charts reject unknown values and describe all known ones."""

import copy
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from support.chart_commands import accepted
from support.chart_values import closed_objects, leaves, schema_of, values_of, values_page
from support.charts import EXAMPLES, LICENSE_SERVER, PLATFORM, ROOT, ChartError, helm, render

DEMO = {"model": {"name": "demo"}}


def put(values: dict[str, Any], path: str, value: Any) -> None:
    *above, name = path.split(".")
    for step in above:
        values = values.setdefault(step, {})
    values[name] = value


@pytest.fixture(params=[PLATFORM, LICENSE_SERVER], ids=lambda chart: chart.name)
def chart(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture
def values(chart: Path) -> dict[str, Any]:
    values = values_of(chart)
    return values | {"model": values["model"] | DEMO["model"]} if chart == PLATFORM else values


def test_the_schema_describes_each_value(chart: Path, values: dict[str, Any]) -> None:
    jsonschema.Draft7Validator.check_schema(schema_of(chart))
    jsonschema.Draft7Validator(schema_of(chart)).validate(values)
    described = {value.path for value in leaves(chart) if value.schema.get("description")}
    assert (
        described == {value.path for value in leaves(chart)} == {*_paths(values_of(chart), chart)}
    )


def _paths(values: dict[str, Any], chart: Path) -> list[str]:
    """Paths in values.yaml, down to maps without named keys in the schema."""
    ends = {value.path for value in leaves(chart)}
    found, left = [], [("", values)]
    while left:
        path, part = left.pop()
        for name, value in part.items():
            below = f"{path}.{name}".lstrip(".")
            if below in ends or not isinstance(value, dict):
                found.append(below)
            else:
                left.append((below, value))
    return found


def test_each_map_rejects_unknown_keys(chart: Path, values: dict[str, Any]) -> None:
    validator = jsonschema.Draft7Validator(schema_of(chart))
    paths = [*closed_objects(values, schema_of(chart))]
    assert len(paths) > 10
    for path in paths:
        wrong = copy.deepcopy(values)
        put(wrong, f"{path}.unknown".lstrip("."), 1)
        assert not validator.is_valid(wrong), path


def test_each_value_rejects_another_type(chart: Path, values: dict[str, Any]) -> None:
    validator = jsonschema.Draft7Validator(schema_of(chart))
    for value in leaves(chart):
        wrong = copy.deepcopy(values)
        put(wrong, value.path, 0.5 if not isinstance(value.default, bool) else "true")
        assert not validator.is_valid(wrong), value.path


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "/model/name"),
        (DEMO | {"gatway": {}}, "gatway"),
        (DEMO | {"worker": {"kvDisk": {"size": 1}}}, "'size' not allowed"),
        (DEMO | {"license": {"mode": False}}, "/license/mode"),
        (DEMO | {"image": {"tag": "latest"}}, "/image/tag"),
        (DEMO | {"redis": {"image": "redis:latest"}}, "/redis/image"),
        (DEMO | {"redis": {"url": "redis://:secret@redis:6379"}}, "/redis/url"),
        (DEMO | {"worker": {"resources": {"limits": {"memory": None}}}}, "limits"),
        (DEMO | {"networkPolicy": {"clients": [{}]}}, "/networkPolicy/clients"),
    ],
)
def test_helm_rejects_values_that_the_schema_rejects(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ChartError, match=reason):
        render(PLATFORM, values=values)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"scheduler": {"replicas": 2}}, "scheduler.replicas above 1 needs redis.url"),
        ({"scheduler": {"enabled": False}}, "scheduler.address is needed"),
        ({"scheduler": {"address": "other:7100"}}, "set scheduler.enabled to false"),
        ({"redis": {"enabled": True}}, "needs redis.secretName"),
        ({"redis": {"secretName": "a"}}, "has no effect without redis.url"),
        (
            {"redis": {"enabled": True, "secretName": "a", "url": "redis://b"}},
            "exclude each other: set one of them",
        ),
        ({"gateway": {"apiKeys": {"inRedis": True}}}, "inRedis needs redis.url"),
        (
            {
                "gateway": {"apiKeys": {"inRedis": True, "secretName": "keys"}},
                "redis": {"url": "redis://b"},
            },
            "inRedis and gateway.apiKeys.secretName exclude each other",
        ),
        ({"gateway": {"autoscaling": {"min": 20}}}, "gateway.autoscaling.max is below its min"),
        ({"draftWorker": {"enabled": True}}, "needs draftWorker.model"),
        ({"worker": {"maxUnavailable": 0}}, "no worker can be replaced"),
        (
            {"workerCpu": {"enabled": True}, "autoscaling": {"kind": "hpa"}},
            "workerCpu.autoscaling.enabled to false",
        ),
    ],
)
def test_contradicting_values_fail_with_one_line(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ChartError, match=reason):
        render(PLATFORM, values=DEMO | values)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"replicas": 2}, "need redis.url"),
        ({"redis": {"secretName": "a"}}, "has no effect without redis.url"),
        ({"tls": {"enabled": True}}, "needs tls.issuer.name"),
        (
            {
                "tls": {"enabled": True, "secretNames": {"server": "a"}},
                "serviceMonitor": {"enabled": True},
            },
            "Prometheus needs a certificate",
        ),
    ],
)
def test_contradicting_values_of_the_license_server_fail(
    values: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ChartError, match=reason):
        render(LICENSE_SERVER, values=values)


def test_services_accept_the_lowest_values_of_the_schema() -> None:
    least: dict[str, Any] = {}
    for value in leaves(PLATFORM):
        if "minimum" in value.schema and "autoscaling" not in value.path:
            put(least, value.path, value.schema["minimum"])
    for path in ("workerCpu.enabled", "draftWorker.enabled", "worker.kvOffload.enabled"):
        put(least, path, True)
    put(least, "worker.kvDisk.enabled", True)
    put(least, "worker.maxUnavailable", 1)
    put(least, "workerCpu.maxUnavailable", 1)
    put(least, "draftWorker.model", "small")
    release = render(PLATFORM, values=DEMO | least)
    for workload in release.workloads:
        accepted(workload.container["args"])


def test_helm_lint_passes() -> None:
    example = EXAMPLES / "everything.yaml"
    helm("lint", "--strict", PLATFORM, "--values", example)
    helm("lint", "--strict", LICENSE_SERVER)


def test_chart_version_is_the_package_version(chart: Path) -> None:
    shown = yaml.safe_load(helm("show", "chart", chart))
    assert shown["version"] == shown["appVersion"] == version("taco-llm")


def test_the_values_page_is_generated_from_the_charts() -> None:
    page = (ROOT / "docs" / "chart-values.md").read_text()
    assert page == values_page(), "python -m support.chart_values in tests/ writes it"
