"""Checks objects against the schemas of Kubernetes, and of the operators that the charts know."""

import functools
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
from jsonschema.protocols import Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

OLDEST, NEWEST = "1.30", "1.37"  # what Chart.yaml asks for, and the newest that there is
_OURS = Path(__file__).parents[1] / "deploy" / "schemas"


def mistakes(document: dict[str, Any], version: str) -> list[str]:
    """What Kubernetes of this version would not accept, unknown fields included."""
    validator = _validator(document["apiVersion"], document["kind"], version)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


@functools.cache
def _validator(api_version: str, kind: str, version: str) -> Validator:
    group, _, number = api_version.rpartition("/")
    parts = [kind.lower(), *filter(None, [group.split(".")[0]]), number]
    name = "-".join(parts) + ".json"
    own = _OURS / name
    if own.exists():
        return jsonschema.Draft202012Validator(json.loads(own.read_text()))
    package = files("kubernetes_validate") / "kubernetes-json-schema"
    folder = package / f"v{version}.0-local-strict"
    schema = json.loads((folder / name).read_text())
    return jsonschema.Draft202012Validator(schema, registry=_definitions(str(folder)))


@functools.cache
def _definitions(folder: str) -> Registry[Any]:
    contents = json.loads((Path(folder) / "_definitions.json").read_text())
    resource = Resource.from_contents(contents, default_specification=DRAFT202012)
    # Crawled once: a registry never changes, so that each look-up would do it again.
    return (resource @ Registry()).crawl()
