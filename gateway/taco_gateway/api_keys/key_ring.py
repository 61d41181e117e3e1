"""The key ring: the API keys in memory, by their hashes."""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from taco_proto.requests import ANYBODY, Tenant

_PUBLIC_MARK = "__taco_public__"
GROUP_BYTES = 2  # leading bytes of a digest: a group has few keys even with thousands of keys
_CHALLENGE = {"www-authenticate": "Bearer"}

Endpoint = TypeVar("Endpoint", bound=Callable[..., object])


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """The permissions of a key's owner. It does not hold the key.

    Attributes:
        models: names of the models that it may use; None: all.
        priority: the most urgent priority of its requests; None: any.
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
    """The valid API keys, stored as keyed hashes.

    The hash secret of keys from a file or from flags lives as long as the process; that of keys in
    Redis is in Redis. Neither a memory dump nor the time of a check reveals a key.

    Args:
        keys: SHA-256 and permissions of each key; an empty list admits every request. None: the
            keys come later (`replace_digests`), and until then every request is rejected.

    Attributes:
        is_loaded: the valid keys are known.
    """

    def __init__(self, keys: Iterable[tuple[bytes, ApiKey]] | None = ()) -> None:
        self._always_asks = keys is None
        self._secret = secrets.token_bytes(32)
        self._groups: dict[bytes, list[tuple[bytes, ApiKey]]] = {}
        self.is_loaded = keys is not None
        self.replace(keys or ())

    @property
    def allows_anonymous(self) -> bool:
        """Whether requests need no key."""
        return not self._groups and not self._always_asks

    def replace(self, keys: Iterable[tuple[bytes, ApiKey]]) -> None:
        """Makes these the only valid keys."""
        self._group((keyed_hash(self._secret, hashed), key) for hashed, key in keys)

    def replace_digests(self, secret: bytes, keys: Iterable[tuple[bytes, ApiKey]]) -> None:
        """Like `replace`, with the `keyed_hash` of each key under `secret`."""
        self._secret, self.is_loaded = secret, True
        self._group(keys)

    def find(self, key: bytes | None) -> ApiKey | None:
        """The permissions of a key's owner; None if the key is not valid."""
        if self.allows_anonymous:
            return ANONYMOUS
        if key is None:
            return None
        presented = keyed_hash(self._secret, key_hash(key))
        found = None
        # All digests of the group are compared, so that the time does not tell which one matched.
        # The group itself depends on the secret.
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
    """SHA-256 of a key, as in a key file."""
    return hashlib.sha256(key).digest()


def keys_from_flags(keys: Iterable[str]) -> list[tuple[bytes, ApiKey]]:
    """Keys given by flags, for `KeyRing`.

    Owners are named by position (`key-1`, `key-2`), so that all gateways use the same names.
    """
    return [
        (key_hash(key.encode()), ApiKey(tenant=Tenant(name=f"key-{number}")))
        for number, key in enumerate(keys, start=1)
    ]
