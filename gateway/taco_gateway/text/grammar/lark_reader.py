"""Reads the rules of a grammar in llguidance's Lark notation, as far as their references go."""

import json
import re
from dataclasses import dataclass, field

_MAX_DEPTH = 40  # nested groups; llguidance allows fewer
_TOKEN = re.compile(
    r"""
    (?P<newline>(?:\r?\n)+[ \t]*)
  | (?P<space>[ \t]+|(?:\#|//)[^\n]*)
  | (?P<string>"(?:\\.|[^"\\\n])*"i?)
  | (?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
  | (?P<object>%(?:json|regex|llguidance)\b)
  | (?P<statement>%(?:ignore|import|override|declare)\b)
  | (?P<nested>%lark\b)
  | (?P<condition>%if\b)
  | (?P<arrow>->)
  | (?P<two_colons>::)
  | (?P<two_dots>\.\.)
  | (?P<number>0[xX][0-9a-fA-F]+|[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
  | (?P<rule>!?[_?]?[a-z][_a-z0-9-]*)
  | (?P<terminal>_?[A-Z][_A-Z0-9-]*)
  | (?P<special><[^<>\s]+>)
  | (?P<grammar>@[a-zA-Z0-9_-]+)
  | (?P<mark>[:,.(){}\[\]~|&=_+*?])
    """,
    re.VERBOSE | re.DOTALL,
)
_DECODER = json.JSONDecoder()
_ENDS = frozenset({"newline", "|", "arrow", "}", ")", "]", "&", "condition", "end"})


class NotReadableError(ValueError):
    """The grammar is in a notation that is not known here. It may be valid."""


@dataclass(slots=True)
class Node:
    """A part of a rule.

    Attributes:
        start, end: its place in the text.
        needs_all: it needs all its children; otherwise one of them.
        children: parts, and keys of rules.
        optional: parts that it does not need.
    """

    start: int
    end: int
    needs_all: bool = True
    children: "list[Node | tuple[int, str]]" = field(default_factory=list)
    optional: "list[Node]" = field(default_factory=list)


Rules = dict[tuple[int, str], Node]
START = (0, "start")


def read_rules(text: str) -> Rules:
    """The rules of a grammar, by the number of the nested grammar that they are in, and name.

    Raises:
        NotReadableError: the notation is not known.
    """
    reader = _Reader(text)
    reader.items(0, 0)
    return reader.rules


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._num_grammars = 0
        self.rules: Rules = {}

    def items(self, scope: int, depth: int) -> None:
        """Read rules, terminals and statements up to the grammar's end."""
        while self._kind not in ("end", "}"):
            start = self._start
            kind, name = self._kind, self._take()
            if kind == "rule":
                name = name.lstrip("!").lstrip("?")
                while self._kind != ":":
                    self._skip_head()
                self._take()
                body = self._alternatives(scope, depth + 1)
                if (scope, name) in self.rules:
                    raise NotReadableError
                self.rules[scope, name] = Node(start, self._last_end, children=[body])
            elif kind == "terminal":
                while self._kind != ":":
                    self._skip_head()
                self._take()
                self._alternatives(scope, depth + 1)
            elif kind == "statement":
                while self._kind not in ("newline", "end"):
                    self._take()
            elif kind not in ("newline", "object"):
                raise NotReadableError

    @property
    def _kind(self) -> str:
        return self._tokens[self._at][0]

    @property
    def _start(self) -> int:
        return self._tokens[self._at][2]

    @property
    def _last_end(self) -> int:
        return self._tokens[self._at - 1][3] if self._at else 0

    def _take(self) -> str:
        kind, value, _, _ = self._tokens[self._at]
        if kind == "end":
            raise NotReadableError
        self._at += 1
        return value

    def _skip_head(self) -> None:
        """A token between a rule's name and its colon."""
        if self._kind in ("newline", "end"):
            raise NotReadableError
        self._take()

    def _alternatives(self, scope: int, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise NotReadableError
        start = self._last_end
        found: list[Node | tuple[int, str]] = [self._alternative(scope, depth)]
        while True:
            if self._kind == "newline" and self._tokens[self._at + 1][0] == "|":
                self._take()
            if self._kind != "|":
                return Node(start, self._last_end, needs_all=False, children=found)
            self._take()
            found.append(self._alternative(scope, depth))

    def _alternative(self, scope: int, depth: int) -> Node:
        before = self._last_end
        start = before if self._kind in _ENDS else self._start
        node = Node(start, before)
        while True:
            while self._kind not in _ENDS:
                self._expression(node, scope, depth)
            if self._kind != "&":
                break
            self._take()
        if self._kind == "arrow":
            self._take()
            self._take()
        if self._kind == "condition":
            self._take()
            self._parameter()
        node.end = max(self._last_end, start)
        return node

    def _expression(self, node: Node, scope: int, depth: int) -> None:
        start, is_negated = self._start, self._kind == "~"
        if is_negated:
            self._take()
        found, is_needed = self._atom(scope, depth)
        if self._kind in ("+", "*", "?"):
            is_needed &= self._take() == "+"
        elif self._kind == "~":
            self._take()
            is_needed &= self._take().lstrip("+0") != ""
            if self._kind == "two_dots":
                self._take()
                self._take()
        elif self._kind == "{":
            self._take()
            is_needed &= self._kind != "," and self._take().lstrip("+0") != ""
            while self._kind != "}":
                self._skip_head()
            self._take()
        if found is None or is_negated:
            return
        if is_needed:
            node.children.append(found)
        else:
            node.optional.append(Node(start, self._last_end, children=[found]))

    def _atom(self, scope: int, depth: int) -> "tuple[Node | tuple[int, str] | None, bool]":
        """A group or reference, and whether it is needed; None: it needs no rule."""
        kind, value = self._kind, self._take()
        if kind in ("(", "["):
            group = self._alternatives(scope, depth + 1)
            if self._take() not in (")", "]"):
                raise NotReadableError
            return group, kind == "("
        if kind == "nested":
            if self._take() != "{":
                raise NotReadableError
            self._num_grammars += 1
            inner = self._num_grammars
            self.items(inner, depth + 1)
            self._take()
            return (inner, START[1]), True
        if kind in ("rule", "terminal"):
            if self._kind == "two_colons":
                self._take()
                self._parameter()
            elif self._kind == "{" and self._tokens[self._at + 1][0] not in (",", "number"):
                raise NotReadableError  # a template
            return ((scope, value) if kind == "rule" else None), True
        if kind == "string" and self._kind == "two_dots":
            self._take()
            self._take()
        elif kind not in ("string", "regex", "object", "special", "grammar"):
            raise NotReadableError
        return None, True

    def _parameter(self) -> None:
        """An expression over the parameter of a rule."""
        self._take()
        if self._kind != "(":
            return
        depth = 0
        while True:
            depth += {"(": 1, ")": -1}.get(self._take(), 0)
            if depth == 0:
                return


def _tokens(text: str) -> list[tuple[str, str, int, int]]:
    """Kind, text, start and end of each token; the kind of a mark is the mark."""
    found: list[tuple[str, str, int, int]] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise NotReadableError
        kind, end = match.lastgroup, match.end()
        if kind == "object":
            while end < len(text) and text[end].isspace():
                end += 1
            try:
                end = _DECODER.raw_decode(text, end)[1]
            except (ValueError, RecursionError):
                raise NotReadableError from None
        if kind != "space":
            value = match[0]
            found.append((value if kind == "mark" else kind, value, at, end))
        at = end
    return [*found, ("end", "", at, at)]
