"""Regular expressions of checkpoints, matched with names of modules in bounded time.

Python's `re` may take exponential time, and configurations come from strangers. Here the set of
all positions that a part of an expression can reach is computed at once, which never goes back.
`re` parses expressions, and matches those with few repeats, which are most.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from math import inf
from typing import Any

_MAX_LENGTH = 2000
_MAX_STEPS = 200_000
_MAX_NAME = 1000
_MAX_SIMPLE_REPEATS = 3
_CHARACTER_KINDS = ("ANY", "LITERAL", "NOT_LITERAL", "IN")
Positions = frozenset[int]


class Expression:
    """A regular expression without back-references."""

    def __init__(self, text: str) -> None:
        """Raises ValueError with the reason if the expression is invalid or not supported."""
        if len(text) > _MAX_LENGTH:
            raise ValueError(f"it has {len(text)} characters, and at most {_MAX_LENGTH} are read")
        try:
            pattern = re.compile(text)
            self._parts: Any = re._parser.parse(text)  # type: ignore[attr-defined]
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(str(error)) from None
        if self._parts.state.flags & ~re.UNICODE:
            raise ValueError("flags are not supported")
        self._text = text
        self._ends = lru_cache(maxsize=10_000)(self._find_ends)
        self._ends("", 0)  # refuses parts that are not supported
        self._simple = pattern if _is_simple(self._parts) else None

    def match(self, name: str) -> bool:
        """Whether the expression matches the start of a name.

        Raises:
            ValueError: it takes too many steps.
        """
        if self._simple is not None:
            return self._simple.match(name) is not None
        return bool(self._ends(name, 0))

    def search(self, name: str) -> bool:
        """As `match`, from any character on."""
        if self._simple is not None:
            return self._simple.search(name) is not None
        return any(self._ends(name, start) for start in range(len(name) + 1))

    def _find_ends(self, name: str, start: int) -> Positions:
        if len(name) > _MAX_NAME:
            raise ValueError(f"a name of {len(name)} characters is too long for an expression")
        return _Matching(self._text, name).sequence(self._parts, frozenset({start}))


@lru_cache(maxsize=1000)
def expression(text: str) -> Expression:
    """An expression, which is parsed once. Raises ValueError as `Expression`."""
    return Expression(text)


def _is_simple(parts: Any) -> bool:
    """Whether only a few single characters are repeated."""
    return _num_repeats(parts) <= _MAX_SIMPLE_REPEATS


def _num_repeats(parts: Any) -> float:
    """Repeats of single characters; infinite if longer parts are repeated."""
    count: float = 0
    for kind, value in parts:
        if str(kind) in ("MAX_REPEAT", "MIN_REPEAT"):
            body = value[2]
            is_character = len(body) == 1 and str(body[0][0]) in _CHARACTER_KINDS
            count += 1 if is_character else inf
        elif str(kind) == "SUBPATTERN":
            count += _num_repeats(value[3])
        elif str(kind) == "BRANCH":
            count += sum(map(_num_repeats, value[1]))
        elif str(kind) in ("ASSERT", "ASSERT_NOT"):
            count += _num_repeats(value[1])
    return count


class _Matching:
    """One expression and one name."""

    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._name = name
        self._num_steps = 0

    def sequence(self, parts: Iterable[Any], starts: Positions) -> Positions:
        """The positions after all parts, one after another, from any of the starts."""
        for kind, value in parts:
            self._num_steps += 1 + len(starts)
            if self._num_steps > _MAX_STEPS:
                raise ValueError(f"the regular expression {self._text!r:.100} takes too long")
            starts = self._part(str(kind), value, starts)
        return starts

    def _part(self, kind: str, value: Any, starts: Positions) -> Positions:
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, parts = value
            return self._repeat(least, most, parts, starts)
        if kind == "SUBPATTERN":
            _, added, removed, parts = value
            if added or removed:
                raise ValueError("flags are not supported")
            return self.sequence(parts, starts)
        if kind == "BRANCH":
            return frozenset().union(*(self.sequence(parts, starts) for parts in value[1]))
        if kind in ("ASSERT", "ASSERT_NOT"):
            direction, parts = value
            if direction < 0:
                raise ValueError("it looks behind, which is not supported")
            wanted = kind == "ASSERT"
            found = {at: bool(self.sequence(parts, frozenset({at}))) for at in starts}
            return frozenset(at for at in starts if found[at] == wanted)
        if kind == "AT":
            return frozenset(at for at in starts if self._is_at(str(value), at))
        return self._characters(kind, value, starts)

    def _repeat(self, least: int, most: int, parts: Any, starts: Positions) -> Positions:
        reached = starts
        for _ in range(least):
            before, reached = reached, self.sequence(parts, reached)
            if reached == before:  # further repeats change nothing
                break
        found = new = reached
        for _ in range(most - least):
            new = self.sequence(parts, new) - found
            if not new:
                break
            found |= new
        return found

    def _is_at(self, place: str, at: int) -> bool:
        end = len(self._name)
        if place in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
            return at == 0
        if place == "AT_END":
            return at == end or (at == end - 1 and self._name[at] == "\n")
        if place == "AT_END_STRING":
            return at == end
        if place in ("AT_BOUNDARY", "AT_NON_BOUNDARY"):
            is_word = [bool(re.match(r"\w", self._name[i : i + 1])) for i in (at - 1, at) if i >= 0]
            is_word = [False, *is_word][-2:]
            return (is_word[0] != is_word[1]) == (place == "AT_BOUNDARY")
        raise ValueError(f"{place} is not supported")

    def _characters(self, kind: str, value: Any, starts: Positions) -> Positions:
        accepts = _characters(kind, value)
        size = len(self._name)
        return frozenset(at + 1 for at in starts if at < size and accepts(self._name[at]))


def _characters(kind: str, value: Any) -> Callable[[str], bool]:
    """Which characters a part accepts."""
    if kind == "ANY":
        return lambda one: one != "\n"
    if kind == "LITERAL":
        return lambda one: ord(one) == value
    if kind == "NOT_LITERAL":
        return lambda one: ord(one) != value
    if kind == "RANGE":
        return lambda one: value[0] <= ord(one) <= value[1]
    if kind == "CATEGORY":
        return _CATEGORIES[str(value)]
    if kind == "IN":
        is_negated = str(value[0][0]) == "NEGATE"
        parts = [_characters(str(part), of) for part, of in value[is_negated:]]
        return lambda one: any(accepts(one) for accepts in parts) != is_negated
    raise ValueError(f"{kind.lower()} is not supported")


def _matches(expression: str) -> Callable[[str], bool]:
    pattern = re.compile(expression)
    return lambda one: pattern.match(one) is not None


_CATEGORIES = {
    "CATEGORY_DIGIT": _matches(r"\d"),
    "CATEGORY_NOT_DIGIT": _matches(r"\D"),
    "CATEGORY_SPACE": _matches(r"\s"),
    "CATEGORY_NOT_SPACE": _matches(r"\S"),
    "CATEGORY_WORD": _matches(r"\w"),
    "CATEGORY_NOT_WORD": _matches(r"\W"),
}
