"""Patterns of a response template that are made of fixed texts.

A response template may give a marker as a regular expression. Only what the descriptions of
`formats` can say is read: fixed texts, alternatives, optional groups, white space between them, and
named groups for a name or a value.
"""

import re
from dataclasses import dataclass

_MAX_SEQUENCES = 32
_MAX_PATTERN_CHARS = 1000
_BLANKS = re.compile(r"(?:\\[sn]|\[(?:\\[snrt]| )+\])[*+?]\??")
_GROUP = re.compile(r"\(\?P?<(\w+)>(?:\\[wS]|\[(?:\\.|[^\]\\])+\]|\.)[*+]\??\)")
_META = frozenset("^$*+?{}[]|().")
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r"}


class TemplateError(ValueError):
    """A response template is invalid, or says what a description cannot say."""


@dataclass(frozen=True, slots=True)
class Group:
    """A named group: a name, or the text of a value."""

    name: str


@dataclass(frozen=True, slots=True)
class Blanks:
    """White space, or none."""


@dataclass(frozen=True, slots=True)
class Start:
    """The beginning of the text."""


Element = str | Group | Blanks | Start
Sequence = tuple[Element, ...]


def sequences(pattern: str) -> list[Sequence]:
    """The alternatives of a pattern, each without white space at its ends.

    Raises:
        TemplateError: the pattern has other elements.
    """
    if len(pattern) > _MAX_PATTERN_CHARS:
        raise TemplateError(f"a pattern has more than {_MAX_PATTERN_CHARS} characters")
    reader = _Reader(pattern)
    found = reader.alternatives()
    if not reader.is_at_end:
        raise reader.error()
    return [_trimmed(_merged(sequence)) for sequence in found]


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._pattern)

    def error(self) -> TemplateError:
        rest = self._pattern[self._at : self._at + 20]
        return TemplateError(f"the pattern {self._pattern!r} has {rest!r}")

    def alternatives(self) -> list[Sequence]:
        found = self._sequence()
        while self._take("|"):
            found += self._sequence()
        return found

    def _sequence(self) -> list[Sequence]:
        found: list[Sequence] = [()]
        while not self.is_at_end and self._pattern[self._at] not in "|)":
            choices = self._item()
            found = [before + choice for before in found for choice in choices]
            if len(found) > _MAX_SEQUENCES:
                raise TemplateError(f"the pattern {self._pattern!r} has too many alternatives")
        return found

    def _item(self) -> list[Sequence]:
        if match := _BLANKS.match(self._pattern, self._at):
            self._at = match.end()
            return [(Blanks(),)]
        if match := _GROUP.match(self._pattern, self._at):
            self._at = match.end()
            return [(Group(match[1]),)]
        if self._take("(?:"):
            choices = self.alternatives()
            if not self._take(")"):
                raise self.error()
            if self._take("?"):
                choices = [*choices, ()]
            return self._unrepeated(choices)
        if self._take("^"):
            return [(Start(),)]
        return self._unrepeated([(self._char(),)])

    def _char(self) -> str:
        char = self._pattern[self._at]
        if char == "\\":
            escaped = self._pattern[self._at + 1 : self._at + 2]
            if not escaped or (escaped.isalnum() and escaped not in _CONTROLS):
                raise self.error()
            self._at += 2
            return _CONTROLS.get(escaped, escaped)
        if char in _META:
            raise self.error()
        self._at += 1
        return char

    def _unrepeated(self, choices: list[Sequence]) -> list[Sequence]:
        if not self.is_at_end and self._pattern[self._at] in "*+?{":
            raise self.error()
        return choices

    def _take(self, text: str) -> bool:
        if not self._pattern.startswith(text, self._at):
            return False
        self._at += len(text)
        return True


def _merged(sequence: Sequence) -> Sequence:
    """The sequence with one string for each run of characters."""
    merged: list[Element] = []
    for element in sequence:
        last = merged[-1] if merged else None
        if isinstance(element, str) and isinstance(last, str):
            merged[-1] = last + element
        else:
            merged.append(element)
    return tuple(merged)


def _trimmed(sequence: Sequence) -> Sequence:
    first, last = 0, len(sequence)
    while first < last and isinstance(sequence[first], Blanks):
        first += 1
    while first < last and isinstance(sequence[last - 1], Blanks):
        last -= 1
    return sequence[first:last]
