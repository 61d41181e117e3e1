"""A TCP link between two services that a test may cut or slow down, in either direction.

What a relay does not forward looks to gRPC as if the network had dropped it; it needs no rights,
unlike a rule of the kernel's.
"""

import asyncio
import socket
import threading
from types import TracebackType
from typing import Self

READ_BYTES = 1 << 16


class Link:
    """Forwards connections to a port in its own thread; dial `port`.

    Attributes:
        drops_up, drops_down: bytes that come from the side that dials, or to it, stay in the relay;
            new connections get nowhere.
        delay: seconds that bytes take, each way.
    """

    def __init__(self, target_port: int) -> None:
        self.drops_up = self.drops_down = False
        self.delay = 0.0
        self._target = target_port
        self._rejects = False
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._socket.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()

    def drop(self) -> None:
        self.drops_up = self.drops_down = True

    def redirect(self, port: int) -> None:
        """New connections go to that port; those that stand stay where they are."""
        self._target = port

    def reject(self) -> None:
        """Connections are reset, and new ones too."""
        self._rejects = True
        self._loop.call_soon_threadsafe(self._reset_all)

    def heal(self) -> None:
        """What was cut stays dead, as after a reset; new connections pass."""
        if self.drops_up or self.drops_down or self._rejects:
            self._loop.call_soon_threadsafe(self._reset_all)
        self.drops_up = self.drops_down = self._rejects = False
        self.delay = 0.0

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------- in the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, sock=self._socket))
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    def _reset_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = {writer}
        self._writers.add(writer)
        try:
            if self._rejects:
                return
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
            writers.add(up_writer)
            self._writers.add(up_writer)
            up = asyncio.create_task(self._forward(reader, up_writer, is_up=True))
            down = asyncio.create_task(self._forward(up_reader, writer, is_up=False))
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            up.cancel()
            down.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
        except OSError:
            pass  # the server is down
        finally:
            self._writers -= writers
            for end in writers:
                end.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_up: bool
    ) -> None:
        """Until either end closes. What was dropped never arrives, as TCP would have it: nothing
        may pass after it on the same connection.
        """
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sender = asyncio.create_task(self._send_late(late, writer))
        is_cut = False
        try:
            while data := await reader.read(READ_BYTES):
                is_cut |= self.drops_up if is_up else self.drops_down
                if not is_cut:
                    late.put_nowait((self._loop.time() + self.delay, data))
            late.put_nowait((0.0, b""))
            await sender
        finally:
            sender.cancel()

    async def _send_late(
        self, late: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        """Until an empty piece comes."""
        while (piece := await late.get())[1]:
            due, data = piece
            await asyncio.sleep(due - self._loop.time())
            writer.write(data)
            await writer.drain()
