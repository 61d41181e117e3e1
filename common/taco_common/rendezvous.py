"""Rendezvous hashing: sends requests with one cache key to one server."""

from collections.abc import Iterable
from hashlib import blake2b


def home_of(prompt_cache_key: str, cache_salt: str, names: Iterable[str]) -> str:
    """Returns the name of the server for requests with this key (Thaler and Ravishankar, 1998).

    Every caller picks the same server. Adding or removing a server remaps only its own keys.
    """
    key = f"{len(cache_salt)}:{cache_salt}{prompt_cache_key}\0"
    return max(names, key=lambda name: blake2b((key + name).encode(), digest_size=16).digest())
