"""Reads which hosts share a rack: one line a host, such as `gpu1 rack-a`."""

from __future__ import annotations

from pathlib import Path

_MAX_BYTES = 16 * 2**20


def read_racks(path: str) -> dict[str, str]:
    """The rack of each host that a file lists; `#` begins a comment.

    Raises:
        ValueError: the file cannot be read, or a line is not a host and its rack.
    """
    try:
        if Path(path).stat().st_size > _MAX_BYTES:
            raise ValueError(f"a file of at most {_MAX_BYTES} bytes")
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ValueError(f"a file that can be read, not {path}: {reason}") from None
    racks: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise ValueError(f"a file of lines `HOST RACK`, not {line.strip()!r} ({path}:{number})")
        host, rack = words
        if racks.setdefault(host, rack) != rack:
            raise ValueError(
                f"a file that names each host once, not {host} again ({path}:{number})"
            )
    if not racks:
        raise ValueError(f"a file of lines `HOST RACK`, not {path}: it names no host")
    return racks
