"""Makes the grammar of an answer of several messages, each for a channel (harmony)."""

from __future__ import annotations

from dataclasses import replace

from taco_gateway.text.grammar.answer_rules import AnswerRules, ChannelRules
from taco_gateway.text.grammar.call_grammar import CallGrammar
from taco_gateway.text.grammar.free_text import Branch, FreeText
from taco_gateway.text.grammar.lark_builder import CONTENT, LarkBuilder, choice, sequence


def channel_answer(
    lark: LarkBuilder, rules: AnswerRules, channels: ChannelRules, has_content: bool
) -> str:
    """The expression of an answer: at most one message of reasoning, then content or a call.

    Free text between a message of content and a call is allowed where no call is required.

    Args:
        has_content: a constraint, to which the grammar refers as `CONTENT`, holds for the content.
    """
    form = channels.format
    # No text contains a token of headers, so that it is read as it was written.
    texts = {*form.tokens, *form.last_ends} - {form.end}
    inside = {rules.markers[text] for text in texts if text in rules.markers}
    text = FreeText(lark, (form.end,), rules.special_ids, rules.end_ids, excluded_ids=inside)
    free = text.until((), may_end=True)
    content = f"@{CONTENT}" if has_content else free
    again = lark.literal(f"{form.end}{form.start}{form.role}")

    parts = []
    call = ""
    if rules.calls is not None:
        forms = (replace(rules.calls, format=one, has_one_call=True) for one in form.calls)
        call = lark.rule(choice(CallGrammar(lark, one).sections() for one in forms))
        parts.append(call)
    requires_call = rules.calls is not None and rules.calls.is_required
    if not requires_call:
        parts.append(sequence((choice(map(lark.literal, form.content_headers)), content)))
        if call and not has_content:
            rest = lark.rule(sequence((lark.literal(f"{form.start}{form.role}"), call)))
            preamble = text.until([Branch(form.end, rest)], may_end=False)
            parts.append(sequence((lark.literal(form.preamble_header), preamble)))
    messages = lark.rule(choice(parts))

    if channels.in_content:
        return sequence((again, messages)) if requires_call else content
    reasoning = rules.reasoning
    if reasoning is None:
        return messages
    rest = lark.rule(sequence((lark.literal(f"{form.start}{form.role}"), messages)))
    thoughts = lark.rule(
        text.until([Branch(form.end, rest)], may_end=False, max_tokens=reasoning.max_tokens)
    )
    if reasoning.has_begun:
        return thoughts
    return choice([sequence((lark.literal(form.reasoning_header), thoughts)), messages])
