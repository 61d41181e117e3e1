"""Wraps the items of lists in Markdown."""

import re
import textwrap
from collections.abc import Iterator


def wrapped(mark: str, note: str) -> Iterator[str]:
    """The lines of an item of a list that begins with `mark`; commands stay whole."""
    kept = re.sub("`[^`]*`", lambda command: command[0].replace(" ", "\0"), f"{mark}{note}")
    indent = " " * len(mark)
    for line in textwrap.wrap(kept, 120, subsequent_indent=indent, break_on_hyphens=False):
        yield line.replace("\0", " ")
