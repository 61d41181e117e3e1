"""Asks an admin listener on a Unix socket."""

import asyncio

from support.patience import PATIENCE_SECONDS

HEADERS = "host: admin\r\nconnection: close\r\n"


async def get(socket: str, path: str, method: str = "GET") -> tuple[int, bytes]:
    """Status and body."""
    answer = await exchange(socket, f"{method} {path} HTTP/1.1\r\n{HEADERS}\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def exchange(socket: str, request: bytes) -> bytes:
    """All that comes until the end of the connection."""
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        writer.write(request)
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await reader.read()
    finally:
        writer.close()
