"""Reads which hosts share a rack: one line a host, such as `gpu1 rack-a`."""

from __future__ import annotations

from pathlib import Path

from taco_train.cluster.text_files import read_lines


def read_racks(path: str) -> dict[str, str]:
    """The rack of each host that a file lists; `#` begins a comment.

    Raises:
        ValueError: the file cannot be read, or a line is not a host and its rack.
    """
    try:
        lines = read_lines(Path(path))
    except ValueError as error:
        raise ValueError(f"a file that can be read, not {path}: {error}") from None
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
