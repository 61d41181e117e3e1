"""Builds a grammar in Lark's notation, as llguidance reads it, from texts, tokens and schemas."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from taco_gateway.text.grammar.canonical import spaces_pattern

CONTENT = "content"  # name of the grammar of the request's own constraint
PATTERN = "pattern"  # kind of a part that is a terminal: the texts that a pattern matches
# A model may write as much white space between the parts of a call; without a limit, all its text.
SPACES = r"/[\x20\x09\x0A\x0D]{1,20}/"
BLANKS = r"/[\x20\x09\x0A\x0D]*/"


@dataclass(frozen=True, slots=True)
class GrammarPart:
    """A constraint to which a grammar refers by name.

    Attributes:
        kind, value: a field of `StructuredOutputsParams`, or `PATTERN` and that of a JSON schema.
        place: where the request has it, for errors.
        is_lenient: what cannot be enforced is ignored, instead of an error.
        max_spaces: number of white-space characters between the tokens of JSON; None: the default.
    """

    name: str
    kind: str
    value: Any
    place: str
    is_lenient: bool = False
    max_spaces: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """How the constraint is read."""
        if self.max_spaces is None:
            return {"lenient": self.is_lenient}
        return {"lenient": self.is_lenient, "whitespace_pattern": spaces_pattern(self.max_spaces)}


@dataclass(frozen=True, slots=True)
class LarkGrammar:
    """A grammar in Lark's notation, with the parts to which it refers."""

    text: str
    parts: tuple[GrammarPart, ...]


class LarkBuilder:
    """Collects the rules and terminals of one grammar. Equal ones are written once.

    Args:
        markers: ids, by text, of tokens that are written as these tokens only.
        part_name: with a number, the names of its parts.
    """

    def __init__(self, markers: Mapping[str, int], part_name: str = "part") -> None:
        self._part_name = part_name
        self._markers = markers
        self._spellings = {token_id: text for text, token_id in markers.items()}
        longest_first = sorted(markers, key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})")
        self._names: dict[str, str] = {}  # by definition
        self._parts: dict[str, GrammarPart] = {}

    def grammar(self, start: str) -> LarkGrammar:
        """The whole grammar, which begins with the expression `start`."""
        lines = [f"start: {start}", *(f"{name}{rest}" for rest, name in self._names.items())]
        return LarkGrammar("\n".join(lines), tuple(self._parts.values()))

    def rule(self, body: str, options: str = "") -> str:
        """The name of a rule with an expression."""
        return self._names.setdefault(f"{options}: {body}", f"r{len(self._names)}")

    def terminal(self, body: str) -> str:
        """The name of a terminal, whose expression has no rules and no tokens."""
        return self._names.setdefault(f": {body}", f"T{len(self._names)}")

    def part(
        self,
        kind: str,
        value: Any,
        place: str,
        *,
        is_lenient: bool = False,
        max_spaces: int | None = None,
    ) -> str:
        """An expression for the texts of a constraint; see `GrammarPart`."""
        key = json.dumps([kind, value, place, is_lenient, max_spaces])
        found = self._parts.get(key)
        if found is None:
            name = f"{self._part_name}{len(self._parts)}"
            found = GrammarPart(name, kind, value, place, is_lenient, max_spaces)
            self._parts[key] = found
        return f"@{found.name}"

    def pattern(self, pattern: str, place: str, *, is_lenient: bool) -> str:
        """The name of a terminal for the texts with a match of a JSON schema's pattern.

        Args:
            place, is_lenient: see `GrammarPart`.
        """
        key = json.dumps([PATTERN, pattern, is_lenient])
        name = f"{PATTERN.upper()}{len(self._parts)}"
        new = GrammarPart(name, PATTERN, pattern, place, is_lenient)
        return self._parts.setdefault(key, new).name

    def pieces(self, text: str) -> list[str | int]:
        """A text divided into marker tokens, by id, and plain texts."""
        if not self._markers:
            return [text] if text else []
        parts = self._pattern.split(text)
        return [
            self._markers[part] if index % 2 else part for index, part in enumerate(parts) if part
        ]

    def spelled(self, piece: str | int) -> str:
        """The text of a piece."""
        return piece if isinstance(piece, str) else self._spellings[piece]

    def literal(self, text: str) -> str:
        """An expression for a text, in which markers are tokens; empty for an empty text."""
        return sequence(
            token_class([piece]) if isinstance(piece, int) else quoted(piece)
            for piece in self.pieces(text)
        )


def quoted(text: str) -> str:
    """An expression for a plain text."""
    return json.dumps(text, ensure_ascii=False)


def sequence(parts: Any) -> str:
    """Expressions one after the other; empty ones are left out."""
    return " ".join(part for part in parts if part)


def choice(parts: Any) -> str:
    """One of several expressions."""
    unique = list(dict.fromkeys(parts))
    return unique[0] if len(unique) == 1 else f"({' | '.join(unique)})"


def token_class(ids: Collection[int], *, negated: bool = False) -> str:
    """An expression for any one of the tokens; negated: for any other token."""
    if not ids:
        return "<[*]>"
    ranges: list[list[int]] = []
    for token_id in sorted(set(ids)):
        if ranges and ranges[-1][1] == token_id - 1:
            ranges[-1][1] = token_id
        else:
            ranges.append([token_id, token_id])
    shown = (str(low) if low == high else f"{low}-{high}" for low, high in ranges)
    return f"<[{'^' if negated else ''}{','.join(shown)}]>"
