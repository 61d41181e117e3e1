"""Expressions for texts up to the end of an answer.

Free text ends where the text that follows it begins. So an expression is made for a part together
with all that follows it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from taco_gateway.text.grammar.canonical import ConstraintError
from taco_gateway.text.grammar.free_text import Branch, FreeText
from taco_gateway.text.grammar.lark_builder import LarkBuilder, choice, quoted, sequence
from taco_gateway.text.grammar.tag_fields import TagTokens


@dataclass(frozen=True, slots=True)
class Rest:
    """A text up to its end.

    Attributes:
        expression: empty: the text is empty.
        branches: the texts with which it may begin, with what follows each. None: it may begin with
            others.
        first_chars: the characters with which it may begin; empty: not known.
        may_end: it may be empty.
        is_open: where it may be empty, the text continues in a way that is not known.
    """

    expression: str
    branches: tuple[Branch, ...] | None = None
    first_chars: str = ""
    may_end: bool = False
    is_open: bool = False


END = Rest("", (), may_end=True)
OPEN = Rest("", (), may_end=True, is_open=True)


class Rests:
    """Makes the rests of one answer."""

    def __init__(self, lark: LarkBuilder, tokens: TagTokens) -> None:
        self._lark = lark
        self._tokens = tokens

    def begun(self, begin: str, after: Rest) -> Rest:
        """A text that begins with a fixed one."""
        if not begin:
            return after
        return Rest(
            self.named(self._lark.literal(begin), after), (Branch(begin, after.expression),)
        )

    def any_of(self, rests: Iterable[Rest]) -> Rest:
        found = list(rests)
        expression = choice(rest.expression or '""' for rest in found)
        branches: tuple[Branch, ...] | None = ()
        for rest in found:
            known = rest.branches
            branches = None if branches is None or known is None else (*branches, *known)
        has_chars = all(rest.first_chars for rest in found)
        return Rest(
            "" if expression == '""' else self.named(expression),
            None if branches is None else tuple(dict.fromkeys(branches)),
            "".join(dict.fromkeys(rest.first_chars for rest in found)) if has_chars else "",
            may_end=any(rest.may_end for rest in found),
            is_open=any(rest.is_open for rest in found),
        )

    def times(
        self, content: Rest, after: Rest, least: int, most: int | None, separator: str = ""
    ) -> Rest:
        """A text several times, then what follows.

        Args:
            content: the text, open.
        """
        if most == 0 or not content.expression:
            return after
        again = self._lark.rule(sequence((separator, content.expression)))
        more = f"{again}{_count(max(least - 1, 0), None if most is None else most - 1)}"
        tail = self.named("" if most == 1 else more, after)
        first = Rest(
            self.named(content.expression, Rest(tail)),
            None
            if content.branches is None
            else tuple(Branch(b.marker, sequence((b.rest, tail))) for b in content.branches),
            content.first_chars,
        )
        if least == 0 or content.may_end:
            return self.any_of([first, after])
        return first

    def text_before_chars(self, after: Rest, excluded: Sequence[str], most: int | None) -> Rest:
        """Text up to one of some characters, none of which it contains."""
        every = self._lark.terminal("/(?s:.*)/")
        body = f"{every} & /(?s:.+)/ & ~({every} {choice(map(quoted, excluded))} {every})"
        if most is not None:
            body += f" & /(?s:.{{0,{most}}})/"
        return Rest(self.named(f"{self._lark.terminal(body)}?", after))

    def branches_of(self, after: Rest, path: str, kind: str) -> tuple[Branch, ...]:
        """The texts that may end free text, with what follows each.

        Raises:
            ConstraintError: it may end with another text.
        """
        if after.branches is None or after.is_open:
            raise ConstraintError(
                f"{path}: what follows {kind} must begin with a fixed text, such as a const_string "
                "or a tag, or be the answer's end"
            )
        return after.branches

    def merged(self, branches: Sequence[Branch]) -> list[Branch]:
        """Equal branches, of which none has a plain marker that begins with that of another.

        Free text ends with the shorter of two such markers.
        """
        plain = {b.marker for b in branches if isinstance(self._lark.pieces(b.marker)[0], str)}
        found = []
        for branch in branches:
            heads = [m for m in plain if branch.marker in plain and branch.marker.startswith(m)]
            head = min(heads, key=len, default=branch.marker)
            tail = self._lark.literal(branch.marker.removeprefix(head))
            found.append(Branch(head, sequence((tail, branch.rest))))
        return list(dict.fromkeys(found))

    def free_text(
        self,
        branches: Iterable[Branch],
        *,
        excluded: Sequence[str] = (),
        max_chars: int | None = None,
    ) -> FreeText:
        return FreeText(
            self._lark,
            [branch.marker for branch in branches],
            self._tokens.without_text.values(),
            self._tokens.end_ids,
            excluded=excluded,
            max_chars=max_chars,
        )

    def free_tokens(
        self, branches: Iterable[Branch], *, excluded: frozenset[int] = frozenset()
    ) -> FreeText:
        return FreeText(
            self._lark,
            [branch.marker for branch in branches],
            self._tokens.without_text.values(),
            self._tokens.end_ids,
            excluded_ids=excluded,
        )

    def named(self, expression: str, after: Rest = END) -> str:
        """The name of a rule for an expression and what follows it; a name stays as it is."""
        whole = sequence((expression, after.expression))
        return whole if whole.isidentifier() or not whole else self._lark.rule(whole)


def _count(least: int, most: int | None) -> str:
    """How often an expression comes, as it is written behind it."""
    if least == 0 and most is None:
        return "*"
    return f"{{{least},{'' if most is None else most}}}"
