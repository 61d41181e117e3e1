"""Grafana's dashboard model: the subset that TACO's dashboards use.

https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA_VERSION = 39  # Grafana 11; later versions migrate it
COLUMNS = 24
STAT_HEIGHT, GRAPH_HEIGHT = 4, 8

Json = dict[str, Any]

_DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph over time, or one number.

    Attributes:
        queries: PromQL by legend; the legend of a stat is `value`. `@gateway`, `@scheduler`, …
            expand to the matchers of a job: see `Dashboard.expand`.
        unit: a Grafana unit: short, s, percentunit, bytes, reqps, …
        width: in columns; a row has 24.
        kind: timeseries or stat.
        worse_from: where a stat turns red, if it does.
        better_from: where a stat turns green, if it does.
    """

    title: str
    description: str
    queries: Mapping[str, str]
    unit: str = "short"
    width: int = 12
    kind: str = "timeseries"
    is_stacked: bool = False
    worse_from: float | None = None
    better_from: float | None = None

    @property
    def height(self) -> int:
        return STAT_HEIGHT if self.kind == "stat" else GRAPH_HEIGHT


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard: rows of panels, and variables that select instances, models and releases.

    Attributes:
        job: the job whose instances a user can select; empty: no selection.
        has_models: a user can select models.
        has_releases: a user can select releases of the Helm chart.
    """

    uid: str
    title: str
    rows: Sequence[Row]
    job: str = ""
    has_models: bool = True
    has_releases: bool = True

    def to_json(self) -> Json:
        return {
            "uid": self.uid,
            "title": self.title,
            "tags": ["taco"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,  # the cross hair is that of all panels
            "refresh": "30s",
            "time": {"from": "now-3h", "to": "now"},
            "timezone": "browser",
            "annotations": {"list": []},
            "links": [_links()],
            "templating": {"list": self._variables()},
            "panels": self._panels(),
        }

    def _variables(self) -> list[Json]:
        variables = [_datasource_variable()]
        if self.has_releases:
            variables.append(
                _label_variable("release", "Release", 'label_values(up{job=~"taco-.+"}, release)')
            )
        if self.has_models:
            query = 'label_values(taco:workers{job="taco-scheduler"}, model_name)'
            variables.append(_label_variable("model", "Model", query))
        if self.job:
            query = f'label_values(up{{job="{self.job}"}}, instance)'
            variables.append(_label_variable("instance", "Instance", query))
        return variables

    def _panels(self) -> list[Json]:
        panels: list[Json] = []
        top = 0
        for row in self.rows:
            panels.append(_row(len(panels) + 1, row.title, top))
            top += 1
            left = height = 0
            for panel in row.panels:
                if left + panel.width > COLUMNS:
                    top, left, height = top + height, 0, 0
                panels.append(self._panel(len(panels) + 1, panel, left, top))
                left += panel.width
                height = max(height, panel.height)
            top += height
        return panels

    def _panel(self, number: int, panel: Panel, left: int, top: int) -> Json:
        return {
            "id": number,
            "type": panel.kind,
            "title": panel.title,
            "description": panel.description,
            "datasource": _DATASOURCE,
            "gridPos": {"x": left, "y": top, "w": panel.width, "h": panel.height},
            "targets": [
                {
                    "refId": chr(ord("A") + index),
                    "datasource": _DATASOURCE,
                    "expr": self.expand(expr),
                    "legendFormat": legend,
                    "range": panel.kind == "timeseries",
                    "instant": panel.kind == "stat",
                }
                for index, (legend, expr) in enumerate(panel.queries.items())
            ],
            "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
            "options": _options(panel),
        }

    def expand(self, expr: str) -> str:
        """Replaces `@job` in an expression by label matchers with this dashboard's variables.

        `@scheduler` matches the job, and also the selected instances if it is the dashboard's own
        job. Draft workers and license servers have no `model_name` label.
        """
        for name in ("draft-worker", "license-server", "gateway", "scheduler", "worker"):
            matchers = [f'job="taco-{name}"']
            if self.has_releases:
                matchers.append('release=~"$release"')
            if self.has_models and name not in ("draft-worker", "license-server"):
                matchers.append('model_name=~"$model"')
            if self.job == f"taco-{name}":
                matchers.append('instance=~"$instance"')
            expr = expr.replace(f"@{name}", ",".join(matchers))
        return expr


def _links() -> Json:
    return {
        "type": "dashboards",
        "title": "TACO",
        "tags": ["taco"],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
    }


def _datasource_variable() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
        "refresh": 1,
        "regex": "",
    }


def _label_variable(name: str, label: str, query: str) -> Json:
    """A variable that selects all values by default, including series without the label."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "hide": 0,
        "refresh": 2,  # when the time range changes
        "regex": "",
        "sort": 1,
    }


def _row(number: int, title: str, top: int) -> Json:
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
        "panels": [],
    }


def _defaults(panel: Panel) -> Json:
    defaults: Json = {"unit": panel.unit, "min": 0}
    if panel.kind == "stat":
        defaults["thresholds"] = {"mode": "absolute", "steps": _steps(panel)}
        return defaults
    defaults["custom"] = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 20 if panel.is_stacked else 5,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.is_stacked else "none", "group": "A"},
    }
    return defaults


def _steps(panel: Panel) -> list[Json]:
    if panel.worse_from is not None:
        return [{"color": "green", "value": None}, {"color": "red", "value": panel.worse_from}]
    if panel.better_from is not None:
        return [{"color": "red", "value": None}, {"color": "green", "value": panel.better_from}]
    return [{"color": "text", "value": None}]


def _options(panel: Panel) -> Json:
    if panel.kind == "stat":
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "none",
            "textMode": "auto",
        }
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
