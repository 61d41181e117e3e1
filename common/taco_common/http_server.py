"""uvicorn as a part of a service: signals and sockets stay with the service."""

from collections.abc import Generator
from contextlib import contextmanager

import uvicorn


class HttpServer(uvicorn.Server):
    """uvicorn's server without its signal handlers.

    It serves the sockets that `serve` gets until its `should_exit` is set.
    """

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
