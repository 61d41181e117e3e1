"""API key authentication: the dependency that checks every route.

A route rejects requests without a valid key unless it is marked `public`.
"""

from collections.abc import Callable
from typing import TypeVar

from fastapi import Request

from taco_gateway.api_errors import ApiError
from taco_gateway.api_keys.key_ring import KeyRing

_PUBLIC_MARK = "__taco_public__"
_CHALLENGE = {"www-authenticate": "Bearer"}

Endpoint = TypeVar("Endpoint", bound=Callable[..., object])


def public(endpoint: Endpoint) -> Endpoint:
    """Marks an endpoint that answers without a key."""
    setattr(endpoint, _PUBLIC_MARK, True)
    return endpoint


def is_public(endpoint: object) -> bool:
    """Whether an endpoint answers without a key."""
    return getattr(endpoint, _PUBLIC_MARK, False)


class Authenticator:
    """Route dependency that rejects requests without a valid API key.

    It raises 401 unless the route is public, no keys are configured, or the key is valid; and 503
    until the keys have been loaded. `request.state.api_key` gets the permissions of the owner.
    """

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    async def __call__(self, request: Request) -> None:
        if is_public(request.scope["endpoint"]):
            return
        if not self._keys.is_loaded:
            raise ApiError(503, "The API keys have not been loaded yet.")
        key = _bearer_key(request)
        api_key = self._keys.find(key)
        if api_key is None:
            message = "The API key is not valid."
            if key is None:
                message = "No API key was given. Send it as 'Authorization: Bearer KEY'."
            raise ApiError(401, message, code="invalid_api_key", headers=_CHALLENGE)
        request.state.api_key = api_key


def _bearer_key(request: Request) -> bytes | None:
    values = [value for name, value in request.headers.raw if name == b"authorization"]
    return bearer_key(values)


def bearer_key(values: list[bytes]) -> bytes | None:
    """The bearer key in the values of `authorization`; None unless there is exactly one value."""
    if len(values) != 1:
        return None
    scheme, _, key = values[0].partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else None
