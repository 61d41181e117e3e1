"""Who shares cached blocks with whom."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheNamespace:
    """Sequences share cached blocks only within a namespace: it names a root of the radix tree."""

    adapter: str = ""
    cache_salt: str = ""
