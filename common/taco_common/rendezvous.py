"""Where requests that begin alike belong."""

from collections.abc import Iterable
from hashlib import blake2b


def home_of(prompt_cache_key: str, cache_salt: str, names: Iterable[str]) -> str:
    """Which of some servers, by their names, requests with this key go to (rendezvous hashing;
    Thaler and Ravishankar, 1998): all who ask agree without a word, and one that comes or goes
    takes no keys from one of the others to another.
    """
    key = f"{len(cache_salt)}:{cache_salt}{prompt_cache_key}\0"
    return max(names, key=lambda name: blake2b((key + name).encode(), digest_size=16).digest())
