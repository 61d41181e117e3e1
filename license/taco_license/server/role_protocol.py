"""uvicorn's HTTP protocol with the roles of the client's certificate in each request's scope."""

import asyncio
from typing import Any

from taco_license.server.http_protocol import BoundedHttpProtocol
from taco_license.tls import roles_of

EXTENSION = "taco.peer"


class RoleHttpProtocol(BoundedHttpProtocol):
    """One connection over mutual TLS. Each request's scope contains the client's roles."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._roles: frozenset[str] = frozenset()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._roles = roles_of(transport.get_extra_info("peercert"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: {"roles": self._roles}}
