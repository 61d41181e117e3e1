"""Request ids, in responses (`x-request-id`) and logs."""

import re
import secrets

from starlette.types import Scope

REQUEST_ID_HEADER = b"x-request-id"
_SANE = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


def new_request_id() -> bytes:
    return secrets.token_hex(16).encode()


def request_id_of(scope: Scope) -> bytes:
    """The client's `x-request-id` if it is printable and short, else a new id."""
    for name, value in scope["headers"]:
        if name == REQUEST_ID_HEADER and _SANE.fullmatch(value):
            return bytes(value)
    return new_request_id()
