"""Rules for free text that ends at one of several markers.

llguidance reads a token either as a whole, where the grammar names tokens, or as bytes. It does not
follow both readings at once, so every position of free text must have one of them only.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from taco_gateway.text.grammar.lark_builder import (
    BLANKS,
    LarkBuilder,
    choice,
    quoted,
    sequence,
    token_class,
)

_ANY_BYTES = r"~/[^\s\S]/"
_ANY_TEXT = r"/(?s:.*)/"
MAX_CHARS = 100_000  # of a bounded text: each is a state of the lexer


class Reading(Enum):
    """How tokens of free text are read.

    TOKENS: all markers are tokens. The text may be any tokens but these.
    BYTES: no marker is a special token. The text may be any bytes but FF, where the answer may end
        within it; otherwise as MIXED.
    MIXED: the text may be valid UTF-8, and special tokens that are no markers.
    """

    TOKENS = "tokens"
    BYTES = "bytes"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Branch:
    """A marker that ends free text, and the expression for what follows it."""

    marker: str
    rest: str


class FreeText:
    """Makes the rules of one grammar for free text.

    Args:
        markers: all texts that may end free text or precede it.
        special_ids: tokens without text.
        end_ids: tokens that end an answer.
        needs_bytes: a text that is no token matters, too.
        excluded: texts that the free text does not contain, each plain or one token.
        excluded_ids: tokens that it does not contain.
        max_chars: number of its characters; None: no limit.
    """

    def __init__(
        self,
        lark: LarkBuilder,
        markers: Collection[str],
        special_ids: Collection[int],
        end_ids: Collection[int],
        *,
        needs_bytes: bool = False,
        excluded: Collection[str] = (),
        excluded_ids: Collection[int] = (),
        max_chars: int | None = None,
    ) -> None:
        self._lark = lark
        self._special_ids = frozenset(special_ids)
        self._end_ids = frozenset(end_ids)
        self._max_chars = max_chars
        tokens = {text: lark.pieces(text)[0] for text in excluded}
        self._excluded = [text for text, first in tokens.items() if isinstance(first, str)]
        self._excluded_ids = frozenset(excluded_ids).union(
            first for first in tokens.values() if isinstance(first, int)
        )
        needs_bytes |= bool(self._excluded) or max_chars is not None
        needs_valid_text = bool(self._excluded_ids) or max_chars is not None
        firsts = [lark.pieces(marker)[0] for marker in markers]
        if not needs_bytes and all(isinstance(first, int) for first in firsts):
            self.reading = Reading.TOKENS
        elif not needs_valid_text and self._special_ids.isdisjoint(
            piece for marker in markers for piece in lark.pieces(marker) if isinstance(piece, int)
        ):
            self.reading = Reading.BYTES
        else:
            self.reading = Reading.MIXED

    def until(
        self,
        branches: Sequence[Branch],
        *,
        may_end: bool,
        max_tokens: int | None = None,
        not_first: Collection[str] = (),
        not_first_char: str = "",
    ) -> str:
        """An expression for free text up to one of the markers and what follows it.

        Args:
            may_end: the answer may end within the text.
            max_tokens: number of tokens before the marker, with `TOKENS` only.
            not_first: markers with which the text does not begin.
            not_first_char: the first character of the text that is no white space is another one.
        """
        if self.reading is Reading.TOKENS:
            return self._of_tokens(branches, may_end, max_tokens, not_first)
        assert max_tokens is None
        if self.reading is Reading.BYTES and may_end:  # special tokens are bytes, end tokens too
            return self._of_bytes(branches, not_first_char)
        return self._mixed(branches, may_end, not_first, not_first_char)

    def around(
        self,
        branches: Sequence[Branch],
        finals: Sequence[Branch] = (),
        *,
        may_end: bool = True,
    ) -> str:
        """An expression for free text in which markers may come, each with what follows it.

        Args:
            finals: what ends the text: markers and what follows them.
            may_end: the answer may end within the text.
        """
        lark = self._lark
        if self.reading is Reading.TOKENS:
            markers = [branch.marker for branch in (*branches, *finals)]
            parts = [sequence((lark.literal(b.marker), b.rest)) for b in branches]
            other = token_class(self._not_free(markers), negated=True)
            text = f"({choice([other, *parts])})*"
            return sequence((text, self._tail(finals, may_end)))
        if self.reading is Reading.BYTES and may_end:
            text = self._text(_ANY_BYTES)
            inside = choice(self._up_to(text, branch) for branch in branches)
            ends = [*(self._up_to(text, branch) for branch in finals), f"{text}?"]
            return f"({inside})* {choice(ends)}"
        by_token, by_text = self._divided(branches)
        all_branches = (*branches, *finals)
        others = self._others([branch.marker for branch in all_branches])
        chunk = self._chunk(all_branches)
        parts = [
            sequence((f"{chunk}?", lark.literal(branch.marker), branch.rest)) for branch in by_token
        ]
        parts += [self._up_to(self._text(_ANY_TEXT), branch) for branch in by_text]
        if others:
            parts.append(f"{chunk}? {token_class(others)}")
        return f"({choice(parts)})* {choice(self._tails(chunk, finals, may_end))}"

    def begins(self, marker: str) -> str:
        """An expression for a marker where free text may be instead."""
        if self.reading is not Reading.BYTES:
            return self._lark.literal(marker)
        return quoted(marker)

    def _of_tokens(
        self,
        branches: Sequence[Branch],
        may_end: bool,
        max_tokens: int | None,
        not_first: Collection[str],
    ) -> str:
        markers = [branch.marker for branch in branches]
        others = token_class(self._not_free(markers), negated=True)
        tail = self._tail(branches, may_end)
        count = "*" if max_tokens is None else f"{{0,{max_tokens}}}"
        text = self._lark.rule(sequence(("" if max_tokens == 0 else f"{others}{count}", tail)))
        if not not_first:
            return text
        first = token_class(self._not_free([*markers, *not_first]), negated=True)
        return choice([f"{first} {text}", *([tail] if tail else []), *(['""'] if may_end else [])])

    def _tail(self, branches: Sequence[Branch], may_end: bool) -> str:
        """An expression for what may follow free text of tokens; empty: nothing."""
        if not branches:
            return ""
        tail = choice(sequence((self._lark.literal(b.marker), b.rest)) for b in branches)
        return f"({tail})?" if may_end else tail

    def _not_free(self, markers: Collection[str]) -> frozenset[int]:
        """The tokens that free text of tokens does not contain."""
        return self._firsts(markers) | self._end_ids | self._excluded_ids

    def _of_bytes(self, branches: Sequence[Branch], not_first_char: str) -> str:
        text = self._text(_ANY_BYTES, not_first_char)
        return choice([*(self._up_to(text, branch) for branch in branches), f"{text}?"])

    def _mixed(
        self,
        branches: Sequence[Branch],
        may_end: bool,
        not_first: Collection[str],
        not_first_char: str,
    ) -> str:
        lark = self._lark
        _, by_text = self._divided(branches)
        others = self._others([*(b.marker for b in branches), *not_first])
        chunk = self._chunk(branches)
        after = f"({chunk}? {token_class(others)})* " if others else ""
        last = choice(self._tails(chunk, branches, may_end))
        if not not_first_char:
            return lark.rule(after + last)
        first = lark.terminal(self._without(self._text(_ANY_TEXT, not_first_char), by_text))
        parts = self._tails(first, branches, may_end, not_first_char)
        if others:
            parts.append(f"{first}? {token_class(others)} {after}{last}")
        return lark.rule(choice(parts))

    def _tails(
        self, text: str, branches: Sequence[Branch], may_end: bool, not_first_char: str = ""
    ) -> list[str]:
        """Expressions for what may follow the last special token that is no marker.

        Args:
            text: a terminal for text without markers.
        """
        by_token, by_text = self._divided(branches)
        parts = [
            sequence((f"{text}?", self._lark.literal(branch.marker), branch.rest))
            for branch in by_token
        ]
        whole = self._text(_ANY_TEXT, not_first_char)
        parts += [self._up_to(whole, branch) for branch in by_text]
        return [*parts, *([f"{text}?"] if may_end else [])]

    def _chunk(self, branches: Sequence[Branch]) -> str:
        """A terminal for at least one character of text without a marker."""
        return self._lark.terminal(self._without(self._text(_ANY_TEXT), self._divided(branches)[1]))

    def _divided(self, branches: Sequence[Branch]) -> tuple[list[Branch], list[Branch]]:
        """The branches whose marker begins with a special token, and the others."""
        by_token = [b for b in branches if self._first_special(b.marker) is not None]
        return by_token, [b for b in branches if self._first_special(b.marker) is None]

    def _others(self, markers: Collection[str]) -> frozenset[int]:
        """The special tokens of free text. A bounded text has no special tokens."""
        if self._max_chars is not None:
            return frozenset()
        return self._special_ids - self._not_free(markers)

    def _up_to(self, text: str, branch: Branch) -> str:
        """Text up to and including a marker that begins with plain text."""
        head = self._plain_head(branch.marker)
        found = self._lark.rule(f"{text} {quoted(head)}", "[lazy]")
        tail = branch.marker.removeprefix(head)
        return sequence((found, self._lark.literal(tail) if tail else "", branch.rest))

    def _plain_head(self, marker: str) -> str:
        """The marker up to its first special token."""
        pieces = self._lark.pieces(marker)
        for index, piece in enumerate(pieces):
            if piece in self._special_ids:
                return "".join(map(self._lark.spelled, pieces[:index]))
        return marker

    def _text(self, whole: str, not_first_char: str = "") -> str:
        """A terminal for the texts of `whole` that are free text."""
        lark = self._lark
        text = everything = lark.terminal(whole)
        if self._excluded:
            texts = choice(map(quoted, self._excluded))
            text = lark.terminal(f"{everything} & ~({everything} {texts} {everything})")
        if self._max_chars is not None:
            text = lark.terminal(f"{text} & /(?s:.{{0,{self._max_chars}}})/")
        if not not_first_char:
            return text
        excluded = f"{BLANKS} {quoted(not_first_char)} {everything}"
        return lark.terminal(f"{text} & ~({excluded})")

    def _without(self, text: str, branches: Sequence[Branch]) -> str:
        """A terminal of at least one character that contains no marker."""
        part = f"{text} & /(?s:.+)/"
        if not branches:
            return part
        inside = self._lark.terminal(_ANY_TEXT)
        texts = choice(quoted(self._plain_head(branch.marker)) for branch in branches)
        return f"{part} & ~({inside} {texts} {inside})"

    def _firsts(self, markers: Collection[str]) -> frozenset[int]:
        firsts = (self._lark.pieces(marker)[0] for marker in markers)
        return frozenset(first for first in firsts if isinstance(first, int))

    def _first_special(self, marker: str) -> int | None:
        first = self._lark.pieces(marker)[0]
        return first if isinstance(first, int) and first in self._special_ids else None
