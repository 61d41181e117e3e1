"""Key-value stores, through which ranks find each other before they have connections."""

from __future__ import annotations

from typing import Protocol


class KeyValueStore(Protocol):
    """A store that all ranks reach. torch's stores satisfy it (taco_train.collective.store)."""

    def set(self, key: str, value: bytes | str, /) -> None:
        """Sets a key, over what it had."""

    def get(self, key: str, /) -> bytes:
        """The value of a key; waits until a rank has set it.

        Raises:
            RendezvousError: no rank has set it within the store's time limit, or the store is gone.
        """

    def add(self, key: str, amount: int, /) -> int:
        """Adds to a counter, which begins at 0, and returns the sum."""


class RendezvousError(Exception):
    """The ranks cannot find each other; the message says which variable, rank or host is wrong."""


class ConfigurationError(RendezvousError):
    """A variable is wrong, or what ranks were told differs: to connect again would not help."""


class PrefixedStore:
    """Another store, in which every key has a prefix."""

    def __init__(self, prefix: str, store: KeyValueStore) -> None:
        self._prefix = prefix
        self._store = store

    def set(self, key: str, value: bytes | str, /) -> None:
        self._store.set(f"{self._prefix}/{key}", value)

    def get(self, key: str, /) -> bytes:
        return self._store.get(f"{self._prefix}/{key}")

    def add(self, key: str, amount: int, /) -> int:
        return self._store.add(f"{self._prefix}/{key}", amount)


class LocalStore:
    """The store of a single rank: nothing that is missing will come."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes | str, /) -> None:
        self._values[key] = value.encode() if isinstance(value, str) else value

    def get(self, key: str, /) -> bytes:
        try:
            return self._values[key]
        except KeyError:
            raise RendezvousError(f"no rank has set {key}") from None

    def add(self, key: str, amount: int, /) -> int:
        total = int(self._values.get(key, b"0")) + amount
        self._values[key] = str(total).encode()
        return total
