"""API keys: a dependency of every route that denies unless the route says that it is public."""

import hmac
import secrets
from collections.abc import Callable, Iterable
from typing import TypeVar

from fastapi import Request

from taco_gateway.errors import ApiError

_PUBLIC_MARK = "__taco_public__"
_CHALLENGE = {"www-authenticate": "Bearer"}

Endpoint = TypeVar("Endpoint", bound=Callable[..., object])


def public(endpoint: Endpoint) -> Endpoint:
    """Marks an endpoint that answers without a key."""
    setattr(endpoint, _PUBLIC_MARK, True)
    return endpoint


class KeyRing:
    """The keys that clients may present, held as keyed hashes.

    The hash key lives as long as the process, so that neither a memory dump's digests nor timing
    says anything of a key.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._secret = secrets.token_bytes(32)
        self._digests = tuple(self._digest(key.encode()) for key in keys)

    @property
    def is_empty(self) -> bool:
        return not self._digests

    def admits(self, key: bytes) -> bool:
        presented = self._digest(key)
        # Every digest is compared, so that time does not tell which one matched.
        return sum(hmac.compare_digest(presented, digest) for digest in self._digests) > 0

    def _digest(self, key: bytes) -> bytes:
        return hmac.digest(self._secret, key, "sha256")


class Authenticator:
    """Route dependency: 401 unless the route is public, keys are off, or a good one is there."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    async def __call__(self, request: Request) -> None:
        if self._keys.is_empty or getattr(request.scope["endpoint"], _PUBLIC_MARK, False):
            return
        key = _bearer_key(request)
        if key is None:
            message = "No API key was given. Send it as 'Authorization: Bearer KEY'."
            raise ApiError(401, message, code="invalid_api_key", headers=_CHALLENGE)
        if not self._keys.admits(key):
            message = "The API key is not valid."
            raise ApiError(401, message, code="invalid_api_key", headers=_CHALLENGE)


def _bearer_key(request: Request) -> bytes | None:
    values = [value for name, value in request.headers.raw if name == b"authorization"]
    if len(values) != 1:
        return None
    scheme, _, key = values[0].partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else None
