"""Finds stop strings in text that arrives in pieces."""

from collections.abc import Sequence


class StopStrings:
    """Finds the first stop string, and holds back only text that may begin one.

    The hit is the stop string whose last character comes first, so that the result does not depend
    on how the text was cut. If several end there, it is the longest.

    Args:
        strings: non-empty strings.
        include: keep the stop string in the text.

    Attributes:
        hit: the stop string that was found; None: none so far.
    """

    def __init__(self, strings: Sequence[str], *, include: bool = False) -> None:
        self._matchers = [_Matcher(s) for s in sorted(strings, key=len, reverse=True)]
        self._include = include
        self._held = ""
        self.hit: str | None = None

    @property
    def num_held(self) -> int:
        """Number of characters that are held back."""
        return len(self._held)

    def feed(self, text: str) -> str:
        """Adds text; returns the part that no stop string can cut off, the last one after a hit."""
        end = len(text)
        for matcher in self._matchers:
            found = matcher.feed(text, end)
            if found and (self.hit is None or found < end):
                self.hit, end = matcher.string, found
        whole = self._held + text[:end]
        if self.hit is not None:
            self._held = ""
            return whole if self._include else whole[: len(whole) - len(self.hit)]
        num_held = max(matcher.num_matched for matcher in self._matchers)
        self._held = whole[len(whole) - num_held :]
        return whole[: len(whole) - num_held]

    def flush(self) -> str:
        """Returns the text that was held back, at the end of the sequence."""
        held, self._held = self._held, ""
        return held


class _Matcher:
    """One string, matched character by character (Knuth, Morris, Pratt 1977).

    The failure table grows with the match, so that a long string costs nothing until text resembles
    it.
    """

    def __init__(self, string: str) -> None:
        self.string = string
        self.num_matched = 0
        self._failure = [0]  # entry i: longest proper border of the first i + 1 characters

    def feed(self, text: str, end: int) -> int:
        """Searches `text[:end]`; returns the position after the first match, or 0."""
        string, matched = self.string, self.num_matched
        position = 0
        while position < end:
            if matched == 0:  # skip to the next possible start of a match
                position = text.find(string[0], position, end)
                if position < 0:
                    break
            char = text[position]
            while matched and string[matched] != char:
                matched = self._border(matched)
            if string[matched] == char:
                matched += 1
            position += 1
            if matched == len(string):
                return position
        self.num_matched = matched
        return 0

    def _border(self, length: int) -> int:
        failure, string = self._failure, self.string
        while len(failure) < length:
            i = len(failure)
            border = failure[i - 1]
            while border and string[border] != string[i]:
                border = failure[border - 1]
            failure.append(border + (string[border] == string[i]))
        return failure[length - 1]
