"""Makes the grammar of a whole answer: its reasoning, then its content or its calls."""

from collections.abc import Sequence

from taco_gateway.text.grammar.answer_rules import AnswerRules, ReasoningRules
from taco_gateway.text.grammar.call_grammar import CallGrammar
from taco_gateway.text.grammar.channel_grammar import channel_answer
from taco_gateway.text.grammar.free_text import Branch, FreeText, Reading
from taco_gateway.text.grammar.lark_builder import (
    CONTENT,
    SPACES,
    LarkBuilder,
    LarkGrammar,
    choice,
    sequence,
)
from taco_proto.token_budget import Pieces, TokenBudget


def answer_grammar(rules: AnswerRules, *, has_content: bool) -> LarkGrammar:
    """The grammar of an answer.

    Args:
        has_content: a constraint, to which the grammar refers as `CONTENT`, holds for the content.

    Raises:
        ConstraintError: the formats of calls and reasoning cannot express the rules.
    """
    lark = LarkBuilder(rules.markers)
    if rules.channels is not None:
        return lark.grammar(channel_answer(lark, rules, rules.channels, has_content))
    return lark.grammar(_Answer(lark, rules, has_content).expression())


def reasoning_budget(rules: AnswerRules) -> TokenBudget | None:
    """The limit on the tokens of an answer's reasoning, where its grammar does not enforce it.

    None: without a limit, or where tokens end the reasoning, so that the grammar counts the others.
    """
    reasoning = rules.reasoning
    if reasoning is None or reasoning.max_tokens is None:
        return None
    lark = LarkBuilder(rules.markers)
    if _reasoning_text(lark, rules, reasoning).reading is Reading.TOKENS:
        return None

    def pieces(marker: str) -> Pieces:
        found = lark.pieces(marker)
        return tuple(
            piece if piece in rules.special_ids else lark.spelled(piece) for piece in found
        )

    opens = () if reasoning.has_begun else reasoning.format.opens
    return TokenBudget(
        max_tokens=reasoning.max_tokens,
        opens=tuple(map(pieces, opens)),
        closes=tuple(map(pieces, _ends(rules, reasoning))),
        end_token_ids=reasoning.end_token_ids,
    )


def _reasoning_text(lark: LarkBuilder, rules: AnswerRules, reasoning: ReasoningRules) -> FreeText:
    return FreeText(lark, _ends(rules, reasoning), rules.special_ids, rules.end_ids)


def _ends(rules: AnswerRules, reasoning: ReasoningRules) -> tuple[str, ...]:
    return reasoning.format.ends(None if rules.calls is None else rules.calls.format)


class _Answer:
    def __init__(self, lark: LarkBuilder, rules: AnswerRules, has_content: bool) -> None:
        self._lark = lark
        self._rules = rules
        self._has_content = has_content
        self._calls = None if rules.calls is None else CallGrammar(lark, rules.calls)
        self._is_free = not has_content and not (rules.calls and rules.calls.is_required)

    def expression(self) -> str:
        reasoning = self._rules.reasoning
        if reasoning is None:
            return self._rest(())
        form = reasoning.format
        after = self._reasoning()
        if reasoning.has_begun:
            return after
        free = self._free_text() if self._is_free else None
        begins = self._lark.literal if free is None else free.begins
        return choice([f"{choice(map(begins, form.opens))} {after}", self._rest(form.opens)])

    def _reasoning(self) -> str:
        """The rest of the answer behind the marker that opens the reasoning."""
        reasoning = self._rules.reasoning
        assert reasoning is not None
        rest = self._rest(()) if self._is_free else f"{self._spaces()} {self._rest(())}"
        rest = self._lark.rule(rest)
        text = _reasoning_text(self._lark, self._rules, reasoning)
        counts_here = text.reading is Reading.TOKENS  # otherwise see `reasoning_budget`
        branches = [Branch(marker, rest) for marker in reasoning.format.closes]
        if reasoning.format.ends_at_calls and self._calls is not None and self._rules.calls:
            calls = self._calls.after_marker()
            branches += [Branch(marker, calls) for marker in self._rules.calls.format.opens]
        return self._lark.rule(
            text.until(
                branches,
                may_end=self._is_free,
                max_tokens=reasoning.max_tokens if counts_here else None,
            )
        )

    def _rest(self, not_first: Sequence[str]) -> str:
        """The answer without its reasoning.

        Args:
            not_first: markers that would open the reasoning.
        """
        if not self._is_free:
            parts = [f"@{CONTENT}"] if self._has_content else []
            if self._calls is not None:
                parts.append(self._calls.sections())
            return choice(parts)
        text = self._free_text()
        if self._calls is None or self._rules.calls is None:
            return text.until((), may_end=True, not_first=not_first)
        form = self._rules.calls.format
        rest = self._calls.after_marker()
        branches = [Branch(marker, rest) for marker in form.opens]
        if not form.starts_answer:
            return text.until(branches, may_end=True, not_first=not_first)
        free = text.until(
            branches, may_end=True, not_first=not_first, not_first_char=form.first_char
        )
        return choice([sequence((self._spaces(), self._calls.unmarked())), free])

    def _free_text(self) -> FreeText:
        """Free text as content, up to the first call."""
        rules, markers, starts_answer = self._rules, list[str](), False
        if rules.reasoning is not None:
            form = rules.reasoning.format
            markers += form.closes
            if not rules.reasoning.has_begun:
                markers += form.opens
        if rules.calls is not None:
            markers += rules.calls.format.opens
            starts_answer = rules.calls.format.starts_answer
        return FreeText(
            self._lark, markers, rules.special_ids, rules.end_ids, needs_bytes=starts_answer
        )

    def _spaces(self) -> str:
        return f"{self._lark.terminal(SPACES)}?"
