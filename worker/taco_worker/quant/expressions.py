"""Regular expressions of checkpoints, matched with names of modules in bounded time.

Python's `re` may take exponential time, and configurations come from strangers. Here the set of
all positions that a part of an expression can reach is computed at once, which never goes back: a
set is an integer with a bit for each position. `re` parses expressions, and matches those with few
repeats, which are most.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache
from math import inf
from typing import Any

_MAX_LENGTH = 2000
_MAX_NAME = 1000
_MAX_SIMPLE_REPEATS = 3
# Steps of one name, and of all names: a checkpoint may have 100,000, which take 100 steps each.
_MAX_STEPS = 200_000
_MAX_ALL_STEPS = 10_000_000
# Expressions of one list, and those of them that `re` must not match.
_MAX_EXPRESSIONS = 10_000
_MAX_OTHERS = 8
_CHARACTER_KINDS = ("ANY", "LITERAL", "NOT_LITERAL", "IN")
Positions = int


class Expression:
    """A regular expression without back-references.

    Attributes:
        is_simple: `re` matches it in a short time.
    """

    def __init__(self, text: str) -> None:
        """Raises ValueError with the reason if the expression is invalid or not supported."""
        if len(text) > _MAX_LENGTH:
            raise ValueError(f"it has {len(text)} characters, and at most {_MAX_LENGTH} are read")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of sets that may mean more in later versions
                pattern = re.compile(text)
                self._parts: Any = re._parser.parse(text)  # type: ignore[attr-defined]
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(str(error)) from None
        if self._parts.state.flags & ~re.UNICODE:
            raise ValueError("flags are not supported")
        self._text = text
        self._num_steps = 0
        self._characters = _Characters()
        self._ends = lru_cache(maxsize=10_000)(self._find_ends)
        try:
            _Matching(text, "", self._characters).check(self._parts)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        self._simple = pattern if _is_simple(self._parts) else None

    @property
    def is_simple(self) -> bool:
        return self._simple is not None

    def match(self, name: str) -> bool:
        """Whether the expression matches the start of a name.

        Raises:
            ValueError: the name is too long, or it takes too many steps, also with the names before
                it; the message names the expression.
        """
        _check_name(name)
        if self._simple is not None:
            return self._simple.match(name) is not None
        return bool(self._ends(name, 1))

    def search(self, name: str) -> bool:
        """As `match`, from any character on."""
        _check_name(name)
        if self._simple is not None:
            return self._simple.search(name) is not None
        return bool(self._ends(name, (2 << len(name)) - 1))

    def _find_ends(self, name: str, starts: Positions) -> Positions:
        if self._num_steps > _MAX_ALL_STEPS:
            raise _too_long(self._text)
        matching = _Matching(self._text, name, self._characters)
        try:
            return matching.sequence(self._parts, starts)
        except RecursionError:
            raise _too_long(self._text) from None
        finally:
            self._num_steps += matching.num_steps


def check_expressions(texts: Iterable[str], where: str) -> None:
    """Check a list of expressions of a checkpoint's settings.

    Args:
        where: names the list.

    Raises:
        ValueError: one is invalid, or the list would take long to match.
    """
    num_others = 0
    for number, text in enumerate(texts, 1):
        if number > _MAX_EXPRESSIONS:
            raise ValueError(f"{where} has more than {_MAX_EXPRESSIONS} regular expressions")
        try:
            num_others += not expression(text).is_simple
        except ValueError as error:
            raise ValueError(
                f"{where} has {text!r:.100}, not a regular expression: {error}"
            ) from None
        if num_others > _MAX_OTHERS:
            raise ValueError(
                f"{where} has {text!r:.100} and {_MAX_OTHERS} more regular expressions that repeat "
                f"groups, or more than {_MAX_SIMPLE_REPEATS} characters: at most {_MAX_OTHERS} are "
                "supported"
            )


def _check_name(name: str) -> None:
    if len(name) > _MAX_NAME:
        raise ValueError(f"a name of {len(name)} characters is too long for an expression")


def _too_long(text: str) -> ValueError:
    return ValueError(f"the regular expression {text!r:.100} takes too long")


@lru_cache(maxsize=20_000)
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


class _Characters:
    """Which characters the parts of one expression accept, by their kinds and values."""

    def __init__(self) -> None:
        self._accepts: dict[object, Callable[[str], bool]] = {}
        self._known: dict[tuple[object, str], bool] = {}

    def accepts(self, kind: str, value: Any, character: str) -> bool:
        """Raises ValueError if parts of this kind are not supported."""
        part = (kind, id(value) if isinstance(value, list) else value)
        key = (part, character)
        if key not in self._known:
            if part not in self._accepts:
                self._accepts[part] = _characters(kind, value)
            self._known[key] = self._accepts[part](character)
        return self._known[key]


class _Matching:
    """One expression and one name."""

    def __init__(self, text: str, name: str, characters: _Characters) -> None:
        self._text = text
        self._name = name
        self._characters = characters
        self.num_steps = 0

    def check(self, parts: Iterable[Any]) -> None:
        """Raises ValueError if parts are not supported."""
        for kind, value in parts:
            self._part(str(kind), value, 0)

    def sequence(self, parts: Iterable[Any], starts: Positions) -> Positions:
        """The positions after all parts, one after another, from any of the starts."""
        for kind, value in parts:
            if not starts:
                break
            self._count(1)
            starts = self._part(str(kind), value, starts)
        return starts

    def _count(self, steps: int) -> None:
        self.num_steps += steps
        if self.num_steps > _MAX_STEPS:
            raise _too_long(self._text)

    def _part(self, kind: str, value: Any, starts: Positions) -> Positions:
        """Where a part may end; with no starts, only whether it is supported."""
        run = self.sequence if starts else self._checked
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, parts = value
            return self._repeat(least, most, parts, starts) if starts else run(parts, starts)
        if kind == "SUBPATTERN":
            _, added, removed, parts = value
            if added or removed:
                raise ValueError("flags are not supported")
            return run(parts, starts)
        if kind == "BRANCH":
            ends = 0
            for parts in value[1]:
                ends |= run(parts, starts)
            return ends
        if kind in ("ASSERT", "ASSERT_NOT"):
            direction, parts = value
            if direction < 0:
                raise ValueError("it looks behind, which is not supported")
            if not starts:
                return run(parts, starts)
            wanted = kind == "ASSERT"
            return _where(starts, lambda at: bool(self.sequence(parts, 1 << at)) == wanted)
        if kind == "AT":
            if str(value) not in _PLACES:
                raise ValueError(f"{value} is not supported")
            return _where(starts, lambda at: self._is_at(str(value), at))
        if kind not in _CHARACTER_KINDS:
            raise ValueError(f"{kind.lower()} is not supported")
        if not starts:
            self._characters.accepts(kind, value, "a")
        return self._after(kind, value, starts)

    def _checked(self, parts: Iterable[Any], _: Positions) -> Positions:
        self.check(parts)
        return 0

    def _repeat(self, least: int, most: int, parts: Any, starts: Positions) -> Positions:
        reached = starts
        for _ in range(least):
            before, reached = reached, self.sequence(parts, reached)
            if reached == before:  # further repeats change nothing
                break
        found = new = reached
        for _ in range(most - least):
            new = self.sequence(parts, new) & ~found
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
        is_word = [bool(re.match(r"\w", self._name[i : i + 1])) for i in (at - 1, at) if i >= 0]
        is_word = [False, *is_word][-2:]
        return (is_word[0] != is_word[1]) == (place == "AT_BOUNDARY")

    def _after(self, kind: str, value: Any, starts: Positions) -> Positions:
        """The positions after one character."""
        starts &= (1 << len(self._name)) - 1
        self._count(starts.bit_count())
        accepts, name = self._characters.accepts, self._name
        return _where(starts, lambda at: accepts(kind, value, name[at])) << 1


def _where(positions: Positions, holds: Callable[[int], bool]) -> Positions:
    """Those of the positions for which something holds."""
    found, left = 0, positions
    while left:
        lowest = left & -left
        if holds(lowest.bit_length() - 1):
            found |= lowest
        left ^= lowest
    return found


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


_PLACES = (
    *("AT_BEGINNING", "AT_BEGINNING_STRING", "AT_END", "AT_END_STRING"),
    *("AT_BOUNDARY", "AT_NON_BOUNDARY"),
)
_CATEGORIES = {
    "CATEGORY_DIGIT": _matches(r"\d"),
    "CATEGORY_NOT_DIGIT": _matches(r"\D"),
    "CATEGORY_SPACE": _matches(r"\s"),
    "CATEGORY_NOT_SPACE": _matches(r"\S"),
    "CATEGORY_WORD": _matches(r"\w"),
    "CATEGORY_NOT_WORD": _matches(r"\W"),
}
