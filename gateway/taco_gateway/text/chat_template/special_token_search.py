"""Finds the texts of special tokens in long texts, without holding the interpreter lock for long.

`re` holds the lock during a search. A model has up to hundreds of special tokens with a common
beginning, and a text can repeat that beginning: with the 256 tokens of Llama 3, one search of such
a text took 0.4 s per million characters, and no stream of the gateway continued meanwhile.
"""

import re
from collections.abc import Collection, Iterator

PIECE_CHARS = 2**14


class SpecialTokenSearch:
    """Finds special tokens from left to right; of two at one position, the longer one.

    Args:
        texts: of the special tokens.
    """

    def __init__(self, texts: Collection[str]) -> None:
        ordered = sorted(filter(None, texts), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
        self._longest = len(ordered[0]) if ordered else 1
        # Without white space alone: templates trim it.
        self._beginnings = {
            text[:end] for text in ordered for end in range(1, len(text)) if text[:end].strip()
        }

    def beginning_at_end(self, text: str) -> str:
        """The longest beginning of a special token, not all of it, that the text ends with."""
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            if text[-size:] in self._beginnings:
                return text[-size:]
        return ""

    def matches(self, text: str) -> Iterator[re.Match[str]]:
        """The matches in order, as `re.finditer` gives them; one search reads one piece."""
        start = 0
        while start < len(text):
            end = start + PIECE_CHARS
            # A token that begins in this piece may end in the next one.
            match = self._pattern.search(text, start, end + self._longest - 1)
            if match is None or match.start() >= end:
                start = end
            else:
                yield match
                start = match.end()
