"""Small text files that users name: lists of hosts and racks."""

from __future__ import annotations

from pathlib import Path

_MAX_BYTES = 16 * 2**20


def read_lines(path: Path) -> list[str]:
    """The lines of a file.

    Raises:
        ValueError: why it cannot be read: `Is a directory`.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)  # /dev/zero has no end
        if len(data) > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES} bytes")
        return data.decode().splitlines()
    except OSError as error:
        raise ValueError(error.strerror) from None
    except UnicodeDecodeError:
        raise ValueError("it is not text") from None
