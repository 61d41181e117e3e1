"""Marks in place of texts while a chat template runs."""

import re
import secrets
import threading

_SECRET_DIGITS = 24
_INDEX_DIGITS = 8


class TextMarks:
    """Marks are digits, which templates write as they are, also as JSON or in an address.

    A client cannot write a mark, because it begins with a secret number. Thread-safe.
    """

    def __init__(self) -> None:
        first = str(secrets.randbelow(9) + 1)
        rest = secrets.randbelow(10 ** (_SECRET_DIGITS - 1))
        self._secret = f"{first}{rest:0{_SECRET_DIGITS - 1}}"
        self._pattern = re.compile(f"{self._secret}(\\d{{{_INDEX_DIGITS}}})")
        self._texts: list[str] = []
        self._indexes: dict[str, int] = {}
        self._lock = threading.Lock()

    def new(self) -> str:
        """Another mark of the empty text."""
        with self._lock:
            self._texts.append("")
            return self._written(len(self._texts) - 1)

    def of(self, text: str) -> str:
        """The mark of a text. All texts are kept: there must not be too many."""
        index = self._indexes.get(text)
        if index is None:
            with self._lock:
                index = self._indexes.setdefault(text, len(self._texts))
                if index == len(self._texts):
                    self._texts.append(text)
        return self._written(index)

    def are_in(self, text: str) -> bool:
        return self._secret in text

    def replaced(self, text: str) -> str:
        """The text with the marked texts in place of their marks."""
        return self._pattern.sub(lambda match: self._texts[int(match[1])], text)

    def _written(self, index: int) -> str:
        return f"{self._secret}{index:0{_INDEX_DIGITS}}"
