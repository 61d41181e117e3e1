"""The size of the last-level cache."""

import re
from pathlib import Path

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


def last_level_cache_bytes(caches: Path = _CACHES) -> int:
    """The size of the largest cache that a core uses; 0 if the system does not report any."""
    sizes = [0]
    for file in caches.glob("index*/size"):
        try:
            found = re.fullmatch(r"(\d+)([KM]?)\n?", file.read_text())
        except OSError:
            continue
        if found is not None:
            sizes.append(int(found[1]) * _UNITS[found[2]])
    return max(sizes)
