"""Dashboards and alerts query exported metrics, with valid PromQL."""

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import make_dashboards
import promql_parser as promql
import pytest
import yaml

from support.exported_metrics import Exported, exported_metrics

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deploy/helm/taco-llm/files"
ALERTS = FILES / "alerts.yaml"
DASHBOARDS = sorted((FILES / "dashboards").glob("*.json"))
BEHAVIOUR = Path(__file__).with_name("alerts_test.yaml")

# Labels that Prometheus and the operator's monitors add.
TARGET_LABELS = {"job", "instance", "namespace", "release"}
COUNTING = {"rate", "increase", "irate"}
VARIABLES = {"$__rate_interval": "5m", "$release": ".*", "$model": ".*", "$instance": ".*"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exported]:
    return asyncio.run(exported_metrics(tmp_path_factory.mktemp("license")))


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """All expressions, with their location."""
    for path in DASHBOARDS:
        for panel in panels(json.loads(path.read_text())):
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']}: {target['refId']}", target["expr"]
    for rule in rules():
        yield rule["alert"], rule["expr"]


# ------------------------------------------------------------ queries


def test_queried_metrics_are_exported(exported: dict[str, Exported]) -> None:
    problems = []
    for place, expr in expressions():
        for variable, value in VARIABLES.items():
            expr = expr.replace(variable, value)
        try:
            check(promql.parse(expr), exported, is_counted=False)
            assert "{" in expr, "it asks for nothing"
        except (AssertionError, ValueError) as error:
            problems.append(f"{place}: {error}")
    assert not problems, "\n".join(problems)


def check(node: Any, exported: dict[str, Exported], *, is_counted: bool) -> set[str]:
    """Returns the labels of the series below a node.

    Args:
        is_counted: whether it is an argument of `rate` or the like, which needs a counter.
    """
    match node:
        case promql.VectorSelector():
            return check_selector(node, exported, is_counted=is_counted)
        case promql.MatrixSelector():
            return check(node.vector_selector, exported, is_counted=is_counted)
        case promql.Call():
            counted = node.func.name in COUNTING
            return set().union(*(check(arg, exported, is_counted=counted) for arg in node.args))
        case promql.AggregateExpr():
            labels = check(node.expr, exported, is_counted=False)
            wanted = set(node.modifier.labels) if node.modifier else set()
            assert wanted <= labels, f"{wanted - labels} are no labels of {node.expr}"
            return wanted
        case promql.BinaryExpr():
            labels = check(node.lhs, exported, is_counted=False)
            other = check(node.rhs, exported, is_counted=False)
            matching = node.modifier.matching if node.modifier else None
            on = set(matching.labels) if matching else set()
            assert on <= labels & other, f"{on} are not labels of both sides of {node.op}"
            return labels | other
        case promql.ParenExpr() | promql.SubqueryExpr() | promql.UnaryExpr():
            return check(node.expr, exported, is_counted=is_counted)
    assert isinstance(node, promql.NumberLiteral), node
    return set()


def check_selector(selector: Any, exported: dict[str, Exported], *, is_counted: bool) -> set[str]:
    name = selector.name
    matchers = {matcher.name: matcher for matcher in selector.matchers.matchers}
    assert "job" in matchers, f"{name} of which job?"
    if name == "up":
        return TARGET_LABELS
    labels: set[str] = set()
    for job in matchers["job"].value.split("|"):
        assert job in exported, f"there is no job {job}"
        assert name in exported[job].types, f"{job} exports no {name}"
        labels |= check_labels(name, matchers, exported[job], is_counted=is_counted)
    return TARGET_LABELS | labels


def check_labels(
    name: str, matchers: dict[str, Any], job: Exported, *, is_counted: bool
) -> set[str]:
    type_ = job.types[name]
    assert not is_counted or type_ in ("counter", "histogram"), f"the rate of a {type_}: {name}"
    assert is_counted or type_ not in ("counter", "histogram"), f"no rate of a {type_}: {name}"
    values = job.values[name]
    for label, matcher in matchers.items():
        if label in TARGET_LABELS or matcher.value == ".*":
            continue
        assert label in values, f"{name} has no label {label}"
        matches = matcher.op in (promql.MatchOp.Re, promql.MatchOp.NotRe)
        wanted = matcher.value.split("|") if matches else [re.escape(matcher.value)]
        for value in wanted:
            assert any(re.fullmatch(value, each) for each in values[label]), f"{label}: {value}"
    return set(values)


# --------------------------------------------------------------- documentation


def test_every_metric_is_documented_and_nothing_else(exported: dict[str, Exported]) -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    items = re.findall(r"^- (`[^(]*)\(", page, re.MULTILINE)  # "- `name{label}`, … (kind): meaning"
    documented = {
        name: set(filter(None, labels.split(",")))
        for item in items
        for name, labels in re.findall(r"`([a-z0-9_:]+)(?:\{([a-z_,]*)\})?`", item)
    }
    there: dict[str, set[str]] = {}
    for job in exported.values():
        for family, type_ in job.families.items():
            name = f"{family}_total" if type_ == "counter" else family
            samples = [n for n in job.types if n == name or n.startswith(f"{name}_")]
            labels = {label for sample in samples for label in job.values[sample]}
            there[name] = labels - {"le", "model_name"}
    assert documented.keys() == there.keys()
    assert documented == there


def test_every_alert_has_a_severity_and_a_runbook() -> None:
    page = (ROOT / "docs/alerts.md").read_text()
    headings = re.findall(r"^## (Taco\w+)$", page, re.MULTILINE)
    names = [rule["alert"] for rule in rules()]
    assert headings == names
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        annotations = rule["annotations"]
        assert annotations.keys() == {"summary", "description", "runbook"}
        assert annotations["runbook"] == f"docs/alerts.md#{rule['alert'].lower()}"
        assert annotations["summary"].endswith(".")
        assert annotations["description"].endswith(".")


# -------------------------------------------------------------- Prometheus, Grafana


def test_promtool_accepts_and_tests_the_rules() -> None:
    run("promtool", "check", "rules", "--lint=all", "--lint-fatal", str(ALERTS))
    run("promtool", "test", "rules", str(BEHAVIOUR))
    fires = set(re.findall(r'alertname="(Taco\w+)"', BEHAVIOUR.read_text()))
    assert fires == {rule["alert"] for rule in rules()}


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboards_are_generated_from_their_sources() -> None:
    files = {path.name: path.read_text(encoding="utf-8") for path in DASHBOARDS}
    assert files == make_dashboards.dashboards(), "run deploy/dashboards/make_dashboards.py"


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_are_valid_in_grafana(path: Path) -> None:
    board = json.loads(path.read_text())
    assert board["uid"] == path.stem
    assert len(board["uid"]) <= 40
    assert board["schemaVersion"] >= 36
    assert "id" not in board, "the importing Grafana's own"
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    variables = [variable["name"] for variable in board["templating"]["list"]]
    assert variables[0] == "datasource"
    for variable in board["templating"]["list"][1:]:
        assert variable["datasource"]["uid"] == "${datasource}"
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert cells
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, f"{panel['title']} lies over another panel"
        taken |= cells
    for panel in panels(board):
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert references == sorted(set(references))
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= set(variables)
            assert target["datasource"] == panel["datasource"]


def test_titles_and_names_of_dashboards_are_unique() -> None:
    boards = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert len({board["title"] for board in boards}) == len(boards) == 6
