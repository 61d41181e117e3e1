"""Cache breakpoints: the number of prompt tokens before a place in a conversation."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.tiny_tokenizers import byte_fallback_bpe, byte_level_bpe
from taco_gateway.text.chat_template.cache_breakpoints import (
    Breakpoint,
    common_prefix_length,
    drop_covered,
)
from taco_gateway.text.chat_template.prompt_rendering import ChatPromptEncoder
from taco_gateway.text.tokenizer.tokenizer import FastTokenizer, TokenizerSettings

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PARTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content %}{{ p.text }}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
)
# Like Gemma and Llama 2: the system prompt is a part of the first question.
FOLDED = (
    "{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\n\n' %}"
    "{% set turns = messages[1:] %}"
    "{% else %}{% set first = '' %}{% set turns = messages %}{% endif %}"
    "{% if not turns %}{{ raise_exception('no question') }}{% endif %}"
    "{% for m in turns %}<|im_start|>{{ m.role }}\n{% if loop.first %}{{ first }}{% endif %}"
    "{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Like Mistral's: the system prompt is a part of the last question.
MOVED = (
    "{% for m in messages[1:] %}<|im_start|>"
    "{% if loop.last %}{{ messages[0].content }}\n\n{% endif %}"
    "{{ m.content }}<|im_end|>{% endfor %}"
)
SYSTEM = {"role": "system", "content": "The quick brown fox."}
QUESTION = {"role": "user", "content": "How are you today?"}
ANSWER = {"role": "assistant", "content": "Lazy."}
BACKEND = byte_level_bpe()


def prompter_of(template: str | None, backend: Any = BACKEND) -> ChatPromptEncoder:
    settings = TokenizerSettings(chat_template=template)
    return ChatPromptEncoder(FastTokenizer(backend, settings))


def before(
    chat_encoder: ChatPromptEncoder,
    messages: list[dict[str, Any]],
    message: int,
    part: int | None = None,
) -> str:
    """The text of the tokens before a place."""
    ids = chat_encoder.encode(messages)
    count = chat_encoder.num_tokens_before(Breakpoint(message, part, 300.0), messages, ids)
    return BACKEND.decode(ids[:count], skip_special_tokens=False)


@pytest.fixture(scope="module")
def prompters() -> Iterator[dict[str, ChatPromptEncoder]]:
    made = {template: prompter_of(template) for template in (CHATML, PARTS, FOLDED, MOVED)}
    yield made
    for chat_encoder in made.values():
        chat_encoder.close()


CONVERSATION = [SYSTEM, QUESTION, ANSWER, QUESTION]
TEXT_PARTS = [{"type": "text", "text": text} for text in ("The fox", " jumps", " over")]


HEAD = "<|im_start|>system\nThe quick brown fox.<|im_end|>\n<|im_start|>user"
WHOLE = HEAD + "\nHow are you today?<|im_end|>"
IN_PARTS = [{"role": "user", "content": TEXT_PARTS}]


@pytest.mark.parametrize(
    ("template", "messages", "place", "expected"),
    [
        # The template's own text behind a place is common, too; not so the last token, as the next
        # text could be merged with it.
        (CHATML, CONVERSATION, (0,), HEAD),
        (CHATML, [SYSTEM, QUESTION], (1,), WHOLE),
        (CHATML, CONVERSATION, (1,), WHOLE + "\n<|im_start|>assistant"),
        (FOLDED, CONVERSATION, (0,), "<|im_start|>user\nThe quick brown fox.\n"),
        (FOLDED, [SYSTEM, QUESTION], (0,), "<|im_start|>user\nThe quick brown fox.\n"),
        (MOVED, CONVERSATION, (0,), "<|im_start|>"),
        (MOVED, [SYSTEM, QUESTION], (0,), "<|im_start|>The quick brown fox.\n"),
        (PARTS, IN_PARTS, (0, 0), "<|im_start|>user\nThe"),
        (PARTS, IN_PARTS, (0, 1), "<|im_start|>user\nThe fox ju"),
        (PARTS, IN_PARTS, (0, 2), "<|im_start|>user\nThe fox jumps over<|im_end|>"),
        (CHATML, IN_PARTS, (0, 0), "<|im_start|>user\nThe fox"),
    ],
)
def test_tokens_before_a_breakpoint(
    prompters: dict[str, ChatPromptEncoder],
    template: str,
    messages: list[dict[str, Any]],
    place: tuple[int, ...],
    expected: str,
) -> None:
    found = before(prompters[template], messages, *place)
    assert found == expected


texts = st.text(st.sampled_from("aeo. \n,foxT"), min_size=1, max_size=12)
turns = st.lists(texts, min_size=1, max_size=4)


@pytest.mark.parametrize("template", [CHATML, FOLDED, PARTS])
@given(kept=turns, one=turns, other=turns)
def test_another_conversation_that_begins_alike_has_those_tokens(
    prompters: dict[str, ChatPromptEncoder],
    template: str,
    kept: list[str],
    one: list[str],
    other: list[str],
) -> None:
    chat_encoder = prompters[template]
    roles = ["system", *["user", "assistant"] * 4]
    first, second = (
        [{"role": role, "content": text} for role, text in zip(roles, kept + tail, strict=False)]
        for tail in (one, other)
    )
    ids, others = chat_encoder.encode(first), chat_encoder.encode(second)
    count = chat_encoder.num_tokens_before(Breakpoint(len(kept) - 1, None, 300.0), first, ids)
    assert ids[:count] == others[:count]
    if template is CHATML:
        assert kept[-1] in BACKEND.decode(ids[:count])


def test_a_template_that_refuses_other_text_tells_nothing() -> None:
    template = "{% if 'you' not in messages[1].content %}{{ raise_exception('no') }}{% endif %}"
    chat_encoder = prompter_of(template + CHATML)
    assert before(chat_encoder, [SYSTEM, QUESTION], 0) == ""
    assert before(chat_encoder, [SYSTEM, QUESTION], 1) == WHOLE
    chat_encoder.close()


def test_the_tokenizers_own_prefix_counts() -> None:
    backend = byte_fallback_bpe()
    plain = prompter_of(None, backend)
    messages = [SYSTEM, QUESTION]
    for adds, first in ((None, 1), (False, 0)):
        ids = plain.encode(messages, add_special_tokens=adds)
        count = plain.num_tokens_before(
            Breakpoint(0, None, 1.0), messages, ids, add_special_tokens=adds
        )
        assert ids[:1] == backend.encode("").ids[:first] or not first
        assert "quick brown fox." in backend.decode(ids[:count])
    plain.close()


def test_a_later_place_that_lasts_as_long_replaces_an_earlier_one() -> None:
    short, long = 300.0, 3600.0
    places = [Breakpoint(i, None, s) for i, s in enumerate((long, short, long, short, short))]
    assert [(p.message, p.seconds) for p in drop_covered(places)] == [(4, short), (2, long)]
    assert drop_covered([]) == []


@given(left=st.lists(st.integers(0, 2)), right=st.lists(st.integers(0, 2)))
def test_common_prefix_length(left: list[int], right: list[int]) -> None:
    count = common_prefix_length(left, right)
    assert left[:count] == right[:count]
    assert left[count : count + 1] != right[count : count + 1] or not left[count:]
