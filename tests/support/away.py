"""Servers that do not answer, each with another fault."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest

from support.serving import free_port


@contextmanager
def refused() -> Iterator[str]:
    """No process listens on the port."""
    yield f"http://127.0.0.1:{free_port()}"


@contextmanager
def silent() -> Iterator[str]:
    """A connection is made, and no word comes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def black_hole() -> Iterator[str]:
    """What is sent there goes nowhere: a queue that is full drops it."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        stack.enter_context(socket.create_connection(listener.getsockname()))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def unknown() -> Iterator[str]:
    """Its name resolves nowhere."""
    yield "http://nowhere.invalid:10080"


@contextmanager
def never_resolved() -> Iterator[str]:
    """Its name is looked up for ever, in this process."""
    ends = threading.Event()
    look_up = socket.getaddrinfo

    def hang(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "slow.invalid":
            ends.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return look_up(host, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", hang)
        try:
            yield "http://slow.invalid:10080"
        finally:
            ends.set()


Away = Callable[[], AbstractContextManager[str]]
WAYS: tuple[Away, ...] = (refused, silent, black_hole, unknown, never_resolved)
