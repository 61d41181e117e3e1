"""A license server in a thread of the test's process, which the test may stop and start again."""

import asyncio
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import uvicorn

from support.licenses import Clock, make_service
from support.patience import PATIENCE_SECONDS, wait_until
from support.serving import free_port
from taco_license.ledger.sqlite_store import Store
from taco_license.server.server import http_server
from taco_license.server.service import LicenseService
from taco_license.tls import TlsFiles


class LicenseServer:
    """Its license, leases and port stay over a restart.

    Args:
        tls: None: it speaks plain HTTP.

    Attributes:
        service: for looks from the test's thread; changes are the server's alone.
    """

    def __init__(self, directory: Path, clock: Clock, tls: TlsFiles | None = None) -> None:
        self.port = free_port()
        self._tls = tls
        self._directory = directory
        self._clock = clock
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    def start(self) -> Self:
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        wait_until(lambda: self._server is not None and self._server.started, "the license server")
        return self

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(PATIENCE_SECONDS)
            self._server = self._thread = None

    def replace(self, document: bytes) -> None:
        """As an upload would, in the server's thread."""
        done = asyncio.run_coroutine_threadsafe(self._import(document), self._loop)
        done.result(PATIENCE_SECONDS)

    async def _import(self, document: bytes) -> None:
        await self.service.import_license(document)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        with (
            Store(self._directory) as store,
            socket.create_server(("127.0.0.1", self.port)) as listener,
        ):
            self.service: LicenseService = make_service(store, self._clock)
            self._server = http_server(self.service, tls=self._tls)
            await self._server.serve(sockets=[listener])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
