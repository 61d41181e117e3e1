"""The few routes of the Hugging Face hub that a download needs, on a loopback port."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlparse

import pytest
from huggingface_hub import constants

COMMIT = "c0ffee" + "0" * 34


@contextmanager
def serve_hub(repositories: Mapping[str, Mapping[str, bytes]]) -> Iterator[tuple[str, list[str]]]:
    """Serve files by repository id and name; yields the address and the list of files fetched."""
    fetched: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_HEAD(self) -> None:
            self._answer()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

        def _answer(self) -> None:
            path = urlparse(self.path).path
            for repository, files in repositories.items():
                if path == f"/api/models/{repository}/revision/main":
                    siblings = [{"rfilename": name} for name in files]
                    info = {"id": repository, "sha": COMMIT, "siblings": siblings}
                    return self._send(json.dumps(info).encode(), {"Content-Type": "json"})
                if path == f"/api/models/{repository}/tree/{COMMIT}":
                    tree = [
                        {"type": "file", "path": name, "size": len(content), "oid": _etag(content)}
                        for name, content in files.items()
                    ]
                    return self._send(json.dumps(tree).encode(), {"Content-Type": "json"})
                if path.startswith(f"/{repository}/resolve/{COMMIT}/"):
                    name = path.removeprefix(f"/{repository}/resolve/{COMMIT}/")
                    if self.command == "GET":
                        fetched.append(name)
                    headers = {"ETag": f'"{_etag(files[name])}"', "X-Repo-Commit": COMMIT}
                    return self._send(files[name], headers)
            known = any(f"/{repository}/" in path for repository in repositories)
            self.send_response(404)
            self.send_header("X-Error-Code", "RevisionNotFound" if known else "RepoNotFound")
            self.send_header("Content-Length", "0")
            return self.end_headers()

        def _send(self, body: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", fetched
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def only_hub(repositories: Mapping[str, Mapping[str, bytes]]) -> Iterator[list[str]]:
    """Serve files as the hub that this process downloads from; yields the list of files fetched."""
    with serve_hub(repositories) as (address, fetched), pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", address)
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield fetched


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
