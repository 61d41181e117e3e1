"""API keys in Redis: their record format, and the changes that `taco_llm keys` makes.

| key | holds |
|---|---|
| `taco:keys` | hash: name of an owner to JSON of its options and of the digests of its keys |
| `taco:keys:secret` | 32 random bytes, the secret of the key hashes |
| `taco:keys:version` | random text, replaced by each change |

Redis holds no key: a digest is the HMAC-SHA256 of the key's SHA-256 under the secret.
"""

import contextlib
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import redis
from redis.client import Pipeline
from redis.exceptions import RedisError

from taco_common.redis_link import read_password
from taco_gateway.api_keys.key_options import (
    OPTIONS,
    KeyOptionError,
    check_options,
    owner_entry,
    read_owner,
)
from taco_gateway.api_keys.key_ring import ApiKey, key_hash, keyed_hash
from taco_proto.config import RedisConfig
from taco_proto.errors import ConfigurationError

KEYS, SECRET, VERSION = "taco:keys", "taco:keys:secret", "taco:keys:version"
SECRET_BYTES = 32
KEY_PREFIX = "sk-"
KEY_ID_CHARS = 8
TIMEOUT_SECONDS = 10.0
_DIGEST = re.compile(r"hmac-sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One owner and its keys.

    Attributes:
        digests: of each valid key.
    """

    owner: ApiKey
    digests: tuple[bytes, ...]

    @property
    def name(self) -> str:
        return self.owner.tenant.name

    @property
    def key_ids(self) -> list[str]:
        """Short ids by which an operator names the keys of an owner."""
        return [digest.hex()[:KEY_ID_CHARS] for digest in self.digests]

    def encode(self) -> str:
        digests = [f"hmac-sha256:{digest.hex()}" for digest in self.digests]
        return json.dumps(owner_entry(self.owner) | {"digests": digests})


def decode_record(name: bytes, data: bytes) -> KeyRecord:
    """Parses a record from Redis.

    Raises:
        KeyOptionError: it is not a record of that owner. No digest is shown.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise KeyOptionError("it", "is not JSON") from None
    entry = check_options(value, (*OPTIONS, "digests"))
    owner = read_owner(entry)
    if owner.tenant.name.encode() != name:
        raise KeyOptionError("name", "differs from the name of the Redis field")
    digests = entry.get("digests")
    if not isinstance(digests, list) or not digests:
        raise KeyOptionError("digests", "must be a list with at least one entry")
    matches = [isinstance(text, str) and _DIGEST.fullmatch(text) for text in digests]
    if not all(matches):
        raise KeyOptionError("digests", "must each be hmac-sha256: and 64 hexadecimal digits")
    return KeyRecord(owner, tuple(bytes.fromhex(match[1]) for match in matches if match))


class RedisKeyStore:
    """Lists, adds, revokes and imports the API keys in Redis. Each change is one transaction.

    Every method raises ConfigurationError if Redis does not answer or holds an invalid record.
    """

    def __init__(self, config: RedisConfig) -> None:
        options: dict[str, Any] = {"socket_timeout": TIMEOUT_SECONDS}
        if config.password_file is not None:
            options["password"] = read_password(config.password_file)
        try:
            self._client = redis.Redis.from_url(config.url, **options)
        except (TypeError, ValueError, RedisError):  # its message may quote the URL
            raise ConfigurationError("the Redis URL or one of its options is not valid") from None

    def records(self) -> dict[str, KeyRecord | str]:
        """All owners by name; for an invalid record, its error message."""
        records: dict[str, KeyRecord | str] = {}
        found: Mapping[bytes, bytes] = self._ask(lambda: self._client.hgetall(KEYS))
        for name, data in sorted(found.items()):
            shown = name.decode(errors="replace")
            try:
                records[shown] = decode_record(name, data)
            except KeyOptionError as error:
                records[shown] = str(error)
        return records

    def add(self, owner: ApiKey, *, another: bool = False) -> str:
        """Creates a key and returns it. The key is not stored and cannot be shown again.

        Args:
            another: add a key to an existing owner, which keeps its options and other keys.

        Raises:
            ConfigurationError: the owner exists already, or with `another` does not exist.
        """
        key = KEY_PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        name = owner.tenant.name

        def change(data: bytes | None, secret: bytes) -> KeyRecord:
            digest = keyed_hash(secret, key_hash(key.encode()))
            if another:
                before = _known(name, data)
                return KeyRecord(before.owner, (*before.digests, digest))
            if data is not None:
                raise ConfigurationError(
                    f"the owner {name!r} exists already: give --another for one more key"
                )
            return KeyRecord(owner, (digest,))

        self._change({name: change})
        return key

    def revoke(self, name: str, key_id: str | None = None) -> None:
        """Revokes all keys of an owner, or only the key with this id.

        Raises:
            ConfigurationError: there is no such owner or key.
        """

        def change(data: bytes | None, secret: bytes) -> KeyRecord | None:
            if key_id is None and data is not None:  # an invalid record, too
                return None
            before = _known(name, data)
            left = [d for d, i in zip(before.digests, before.key_ids, strict=True) if i != key_id]
            if len(left) == len(before.digests):
                raise ConfigurationError(f"{name!r} has no key {key_id}")
            return KeyRecord(before.owner, tuple(left)) if left else None

        self._change({name: change})

    def put(self, keys: Iterable[tuple[bytes, ApiKey]]) -> int:
        """Imports the result of `read_key_file`; an existing owner is replaced.

        Returns:
            The number of owners.
        """
        hashes: dict[str, list[bytes]] = {}
        owners: dict[str, ApiKey] = {}
        for hashed, owner in keys:
            owners[owner.tenant.name] = owner
            hashes.setdefault(owner.tenant.name, []).append(hashed)

        def change_to(name: str) -> _Change:
            return lambda data, secret: KeyRecord(
                owners[name], tuple(keyed_hash(secret, hashed) for hashed in hashes[name])
            )

        self._change({name: change_to(name) for name in owners})
        return len(owners)

    def _change(self, changes: "Mapping[str, _Change]") -> None:
        def transaction(pipeline: Pipeline) -> None:
            secret: Any = pipeline.get(SECRET)
            is_new = secret is None
            if is_new:
                secret = secrets.token_bytes(SECRET_BYTES)
            elif len(secret) != SECRET_BYTES:
                raise ConfigurationError(
                    f"{SECRET} in Redis is invalid: delete it and taco:keys, then import the keys"
                )
            found: Any = pipeline.hgetall(KEYS)
            records = {
                name: change(found.get(name.encode()), secret) for name, change in changes.items()
            }
            _check_owners(records, found)
            pipeline.multi()
            if is_new:
                pipeline.set(SECRET, secret)
            for name, record in records.items():
                if record is None:
                    pipeline.hdel(KEYS, name)
                else:
                    pipeline.hset(KEYS, name, record.encode())
            pipeline.set(VERSION, new_version())

        self._ask(lambda: self._client.transaction(transaction, KEYS, SECRET))

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except (RedisError, OSError) as error:
            raise ConfigurationError(f"Redis: {error}") from None


# Maps the current record of an owner (None: no record) and the secret to the new record.
_Change = Callable[[bytes | None, bytes], KeyRecord | None]


def _check_owners(changed: Mapping[str, KeyRecord | None], found: Mapping[bytes, bytes]) -> None:
    """Raises:
    ConfigurationError: a key would have two owners, and would stay valid after one is revoked.
    """
    owners: dict[bytes, str] = {}
    for name, data in found.items():
        shown = name.decode(errors="replace")
        if shown not in changed:
            with contextlib.suppress(KeyOptionError):  # an invalid record has no keys
                owners |= dict.fromkeys(decode_record(name, data).digests, shown)
    for shown, record in changed.items():
        for digest in record.digests if record is not None else ():
            if owners.setdefault(digest, shown) != shown:
                raise ConfigurationError(
                    f"a key of {shown!r} belongs to {owners[digest]!r} already: revoke it there"
                )


def new_version() -> str:
    return secrets.token_hex(16)


def _known(name: str, data: bytes | None) -> KeyRecord:
    if data is None:
        raise ConfigurationError(f"there is no owner {name!r}")
    try:
        return decode_record(name.encode(), data)
    except KeyOptionError as error:
        raise ConfigurationError(f"the record of {name!r} in Redis: {error}") from None
