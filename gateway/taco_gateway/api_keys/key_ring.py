"""API keys: a dependency of every route that denies unless the route says that it is public."""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request

from taco_gateway.api_errors import ApiError
from taco_proto.requests import ANYBODY, Tenant

_PUBLIC_MARK = "__taco_public__"
GROUP_BYTES = 2  # of a digest: of thousands of keys, hardly more than one stands in each group
_CHALLENGE = {"www-authenticate": "Bearer"}

Endpoint = TypeVar("Endpoint", bound=Callable[..., object])


def public(endpoint: Endpoint) -> Endpoint:
    """Marks an endpoint that answers without a key."""
    setattr(endpoint, _PUBLIC_MARK, True)
    return endpoint


def is_public(endpoint: object) -> bool:
    """Whether an endpoint answers without a key."""
    return getattr(endpoint, _PUBLIC_MARK, False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """What the owner of a key may have. It does not hold the key.

    Attributes:
        models: names that it may use; None: all.
        priority: a request is never more urgent than that; None: whatever it asks for.
    """

    tenant: Tenant = ANYBODY
    models: frozenset[str] | None = None
    priority: int | None = None

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models

    def clamp_priority(self, priority: int) -> int:
        return priority if self.priority is None else max(priority, self.priority)


ANONYMOUS = ApiKey()


class KeyRing:
    """The keys that clients may present, held as keyed hashes.

    Of a key file or of flags, the secret under which they are hashed lives as long as the process;
    of Redis, as long as what stands there. Neither a memory dump's digests nor timing says anything
    of a key.

    Args:
        keys: SHA-256 of each key, and what its owner may have; if there are none, everybody is let
            in. None: they come later (`replace_digests`), and without any nobody is let in.

    Attributes:
        is_known: it has been said which keys are good.
    """

    def __init__(self, keys: Iterable[tuple[bytes, ApiKey]] | None = ()) -> None:
        self._always_asks = keys is None
        self._secret = secrets.token_bytes(32)
        self._groups: dict[bytes, list[tuple[bytes, ApiKey]]] = {}
        self.is_loaded = keys is not None
        self.replace(keys or ())

    @property
    def allows_anonymous(self) -> bool:
        """Whether no key is needed."""
        return not self._groups and not self._always_asks

    def replace(self, keys: Iterable[tuple[bytes, ApiKey]]) -> None:
        """These keys are good from now on, and no others."""
        self._group((keyed_hash(self._secret, hashed), key) for hashed, key in keys)

    def replace_digests(self, secret: bytes, keys: Iterable[tuple[bytes, ApiKey]]) -> None:
        """As `replace`, for the `keyed_hash` of each key under that secret."""
        self._secret, self.is_loaded = secret, True
        self._group(keys)

    def find(self, key: bytes | None) -> ApiKey | None:
        """What the owner of a key may have; None if it is no good one."""
        if self.allows_anonymous:
            return ANONYMOUS
        if key is None:
            return None
        presented = keyed_hash(self._secret, key_hash(key))
        found = None
        # Every digest of its group is compared, so that time does not tell which one matched; which
        # group that is says nothing to those who do not have the secret.
        for digest, api_key in self._groups.get(presented[:GROUP_BYTES], ()):
            if hmac.compare_digest(presented, digest):
                found = api_key
        return found

    def _group(self, entries: Iterable[tuple[bytes, ApiKey]]) -> None:
        groups: dict[bytes, list[tuple[bytes, ApiKey]]] = {}
        for digest, api_key in entries:
            groups.setdefault(digest[:GROUP_BYTES], []).append((digest, api_key))
        self._groups = groups


def keyed_hash(secret: bytes, hashed: bytes) -> bytes:
    """HMAC-SHA256 of a key's SHA-256."""
    return hmac.digest(secret, hashed, "sha256")


def key_hash(key: bytes) -> bytes:
    """How a key stands in a key file."""
    return hashlib.sha256(key).digest()


def keys_from_flags(keys: Iterable[str]) -> list[tuple[bytes, ApiKey]]:
    """Keys without a file, for `KeyRing`. Their owners are told apart by their place in the list,
    so that all gateways agree.
    """
    return [
        (key_hash(key.encode()), ApiKey(tenant=Tenant(name=f"key-{number}")))
        for number, key in enumerate(keys, start=1)
    ]


class Authenticator:
    """Route dependency: 401 unless the route is public, keys are off, or a good one is there; 503
    while it is not known which are good.

    What the key's owner may have stands in `request.state.api_key`.
    """

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    async def __call__(self, request: Request) -> None:
        if is_public(request.scope["endpoint"]):
            return
        if not self._keys.is_loaded:
            raise ApiError(503, "The API keys are not known yet.")
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
    """The key in the values of `authorization`; None unless there is exactly one."""
    if len(values) != 1:
        return None
    scheme, _, key = values[0].partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else None
