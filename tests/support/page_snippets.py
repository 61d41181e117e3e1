"""Code blocks of a documentation page that a comment marks as tested.

`<!-- kind: argument -->` before a fence; both may be indented, as in a list.
"""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SNIPPET = re.compile(
    r"^( *)<!-- (?P<kind>[\w ]+?)(?:: (?P<argument>\S+))? -->\n\1```\w+\n(?P<text>.*?)^\1```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Snippet:
    """`text` has no indentation of the page."""

    kind: str
    argument: str
    text: str


def snippets(page: Path) -> Iterator[Snippet]:
    for match in _SNIPPET.finditer(page.read_text()):
        yield Snippet(match["kind"], match["argument"] or "", textwrap.dedent(match["text"]))
