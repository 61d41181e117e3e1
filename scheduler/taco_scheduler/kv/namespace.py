"""Cache namespaces: sequences share cached blocks only within one."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheNamespace:
    """Names a root of the radix tree: an adapter and a cache salt."""

    adapter: str = ""
    cache_salt: str = ""
