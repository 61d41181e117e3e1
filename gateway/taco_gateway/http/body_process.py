"""Parses and validates large request bodies, in a process of its own: `body_pool` starts it.

`json.loads` and pydantic hold the interpreter for as long as they run, so that a thread would stop
every stream of the gateway. Here the kernel bounds what one body may take: an interval timer ends
the process, and a limit on the address space makes an allocation fail.

The program reads messages of two frames (the surface's name, the body) from the socket that is its
standard input. It answers `ok` or `error`, its own size in bytes, and the frames of
`body_frames.pack` or the error as JSON.
"""

import gc
import json
import resource
import signal
import socket
from pathlib import Path

from pydantic import ValidationError

from taco_gateway.errors import ApiError, as_api_error
from taco_gateway.http.body_frames import pack, receive, send
from taco_gateway.http.json_body import check_counts, parse_json_object
from taco_gateway.protocol.surfaces import SURFACES
from taco_proto.errors import InvalidParameterError

CPU_SECONDS = 10.0
MAX_MEMORY_BYTES = 2**31


def _answer(surface: str, raw: bytes) -> list[bytes]:
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        body = parse_json_object(raw)
        check_counts(body)
        SURFACES[surface].validate(body)
        state, frames = b"ok", pack(body)
    except (ApiError, InvalidParameterError, ValidationError) as error:
        state, frames = _error(as_api_error(error))
    except OverflowError:
        state, frames = _error(ApiError(400, "The request body has an integer above 2**31 - 1."))
    except MemoryError:
        state, frames = _error(ApiError(400, "The request body needs too much memory."))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return [state, b"%d" % _resident_bytes(), *frames]


def _resident_bytes() -> int:
    num_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return num_pages * resource.getpagesize()


def _error(error: ApiError) -> tuple[bytes, list[bytes]]:
    values = {
        "status": error.status,
        "message": error.message,
        "param": error.param,
        "code": error.code,
    }
    return b"error", [json.dumps(values).encode()]


def main() -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for the parent, which closes the socket
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.disable()  # JSON has no cycles, and looking for them takes longer than parsing
    connection = socket.socket(fileno=0)
    try:
        while True:
            surface, raw = receive(connection)
            send(connection, _answer(surface.decode(), raw))
    except (EOFError, ConnectionError):
        return  # the parent is gone


if __name__ == "__main__":
    main()
