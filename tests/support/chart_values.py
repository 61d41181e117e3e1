"""Walks the values of a chart and the schema beside them.

`python -m support.chart_values` in tests/ writes the page docs/chart-values.md from them.
"""

import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import yaml

from support.charts import LICENSE_SERVER, PLATFORM, ROOT

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Value:
    """One value that may be set.

    Attributes:
        path: such as `worker.kvDisk.sizeGiB`.
        default: what values.yaml says.
    """

    path: str
    default: Any
    schema: Schema


def values_of(chart: Path) -> dict[str, Any]:
    return yaml.safe_load((chart / "values.yaml").read_text())


def schema_of(chart: Path) -> Schema:
    return json.loads((chart / "values.schema.json").read_text())


def leaves(chart: Path) -> Iterator[Value]:
    """All values in the order of the schema, down to those that have no named parts."""
    yield from _leaves(schema_of(chart), values_of(chart), "")


def closed_objects(values: dict[str, Any], schema: Schema, path: str = "") -> Iterator[str]:
    """The paths of all maps that have named parts, the whole being the empty one."""
    yield path
    for name, part in schema["properties"].items():
        if "properties" in part:
            yield from closed_objects(values[name], part, f"{path}.{name}".lstrip("."))


def _leaves(schema: Schema, values: dict[str, Any], path: str) -> Iterator[Value]:
    for name, part in schema["properties"].items():
        below = f"{path}.{name}".lstrip(".")
        if "properties" in part:
            yield from _leaves(part, values[name], below)
        else:
            yield Value(below, values[name], part)


def values_page() -> str:
    """The documentation's page of all values, as Markdown."""
    return "\n".join([_INTRODUCTION, *(_section(chart) for chart in (PLATFORM, LICENSE_SERVER))])


def _section(chart: Path) -> str:
    lines = [f"## {chart.name}", ""]
    for group, values in groupby(leaves(chart), key=lambda value: value.path.split(".")[0]):
        lines += [f"### {group}", "", *chain.from_iterable(map(_item, values)), ""]
    return "\n".join(lines)


def _item(value: Value) -> list[str]:
    """One value as a Markdown list item, wrapped at 120 characters."""
    choices = ", ".join(f"`{choice}`" for choice in value.schema.get("enum", ()))
    default = _shown(value.default)
    about = [text for text in (choices, f"default {default}" if default else "") if text]
    name = f"`{value.path}`" + (f" ({'; '.join(about)})" if about else "")
    return textwrap.wrap(
        f"- {name}: {value.schema['description']}",
        width=120,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _shown(default: Any) -> str:
    if default in ("", [], {}):
        return ""
    text = default if isinstance(default, str) else json.dumps(default)
    return f"`{text}`"


_INTRODUCTION = """\
# Values of the charts

All values that you can set with `--values` and `--set` in the charts of the page
[Kubernetes](kubernetes.md). Every value but `model.name` has a default; where none is shown, it is
empty. The charts reject unknown values and values of a wrong type. This page is generated from the
charts: `cd tests && python -m support.chart_values`.
"""


if __name__ == "__main__":
    (ROOT / "docs" / "chart-values.md").write_text(values_page())
