"""As much of a Kubernetes API server as Helm asks when it renders a chart: which kinds and objects
there are."""

import contextlib
import json
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support.charts import Document, Release

_NOT_FOUND = {"kind": "Status", "apiVersion": "v1", "code": 404, "reason": "NotFound"}


@contextlib.contextmanager
def api_server(kinds_of: Release, objects: Iterable[Document]) -> Iterator[str]:
    """The URL of a server that knows the kinds of a release, and has these objects."""
    pages = _discovery(kinds_of) | {_path(each): each for each in objects}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            body = json.dumps(page or _NOT_FOUND).encode()
            self.send_response(200 if page else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _root(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def _plural(kind: str) -> str:
    return kind.lower().removesuffix("y") + ("ies" if kind.endswith("y") else "s")


def _path(document: Document) -> str:
    metadata = document["metadata"]
    root = _root(document["apiVersion"])
    plural = _plural(document["kind"])
    return f"{root}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}"


def _discovery(release: Release) -> dict[str, Any]:
    kinds = defaultdict(set)
    for document in release.documents:
        kinds[document["apiVersion"]].add(document["kind"])
    groups = [
        {"name": version.partition("/")[0], "versions": [named], "preferredVersion": named}
        for version in kinds
        if "/" in version
        for named in ({"groupVersion": version, "version": version.partition("/")[2]},)
    ]
    pages: dict[str, Any] = {
        "/version": {"major": "1", "minor": "30", "gitVersion": "v1.30.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
    }
    for version, names in kinds.items():
        resources = [
            {"name": _plural(kind), "namespaced": True, "kind": kind, "verbs": ["get"]}
            for kind in sorted(names)
        ]
        pages[_root(version)] = {
            "kind": "APIResourceList",
            "groupVersion": version,
            "resources": resources,
        }
    return pages
