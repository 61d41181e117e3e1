"""An HTTP server that answers every completion with the same bytes: for clients' tests."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def events(*contents: dict[str, Any] | str) -> bytes:
    """Server-sent events; a string is sent unchanged."""
    texts = (c if isinstance(c, str) else json.dumps(c) for c in contents)
    return "".join(f"data: {text}\n\n" for text in texts).encode()


def piece(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    """A chunk of a streamed completion."""
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]}


def refusal(status: int, body: bytes) -> bytes:
    """A whole answer with an error status."""
    return b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


class CannedServer:
    """Sends `answer`, bytes as they go over the wire, and closes; None: sends nothing, ever.

    With `stays_open` it does not close the connection behind the answer.

    Attributes:
        requests: the bodies that were posted, parsed.
        headers: the headers of each.
        url: where it listens.
    """

    def __init__(
        self,
        answer: bytes | None,
        models: bytes = b'{"data": [{"id": "m"}]}',
        *,
        stays_open: bool = False,
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._leave = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.wfile.write(
                    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(models), models)
                )

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.append(json.loads(body))
                outer.headers.append(dict(self.headers))
                if answer is not None:
                    self.wfile.write(answer)
                if answer is None or stays_open:
                    outer._leave.wait()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
