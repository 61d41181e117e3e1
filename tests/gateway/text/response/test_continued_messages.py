"""Where the reasoning of an answer is that continues a message."""

import pytest

from support.tiny_tokenizers import byte_level_bpe
from taco_gateway.text.grammar.answer_rules import AnswerWish
from taco_gateway.text.response.response_formats import ResponseFormats
from taco_gateway.text.response.response_parser import ResponseParser
from taco_gateway.text.tokenizer.tokenizer import FastTokenizer, TokenizerSettings

OPENED = "<think>\nOkay, so"
CLOSED = "<think>x</think>\n\nThe"


@pytest.fixture(scope="module")
def tokenizer() -> FastTokenizer:
    return FastTokenizer(byte_level_bpe(), TokenizerSettings())


@pytest.mark.parametrize(
    ("parser", "continued", "answer", "reasoning", "content"),
    [
        ("deepseek_r1", "Sure, the answer", " is 4.", "", " is 4."),
        ("deepseek_r1", CLOSED, " answer is 4.", "", " answer is 4."),
        ("deepseek_r1", OPENED, " 4.</think>It is 4.", "4.", "It is 4."),
        ("qwen3", OPENED, " 4.</think>It is 4.", "4.", "It is 4."),
        ("qwen3", CLOSED, " answer is 4.", "", " answer is 4."),
        ("qwen3", "Sure, the answer", " is 4.", "", " is 4."),
    ],
)
def test_the_last_marker_of_the_message_tells(
    tokenizer: FastTokenizer, parser: str, continued: str, answer: str, reasoning: str, content: str
) -> None:
    formats = ResponseFormats(tokenizer, None, parser)
    prompt = tokenizer.encode(f"user: 2+2? assistant: {continued}")
    options = formats.options(
        prompt, {}, max_calls=None, skip_special_tokens=True, continued=continued
    )
    assert options is not None
    reader = ResponseParser(options)
    reader.feed(answer, len(answer))
    reader.finish()
    delta = reader.take()
    assert (delta.reasoning.strip(), delta.content) == (reasoning, content)


@pytest.mark.parametrize(
    ("parser", "continued", "has_begun"),
    [
        ("deepseek_r1", "Sure", None),
        ("deepseek_r1", CLOSED, None),
        ("qwen3", OPENED, True),
        ("qwen3", None, False),
        ("deepseek_r1", None, True),
    ],
)
def test_the_grammar_of_a_continued_message(
    tokenizer: FastTokenizer, parser: str, continued: str | None, has_begun: bool | None
) -> None:
    """None: the answer has no more reasoning, so that the constraint holds from its begin."""
    formats = ResponseFormats(tokenizer, None, parser)
    prompt = tokenizer.encode(f"user: 2+2? assistant: {continued or ''}")
    wish = AnswerWish(has_constraint=True)
    rules = formats.rules(prompt, wish, [1], continued=continued)
    found = None if rules is None or rules.reasoning is None else rules.reasoning.has_begun
    assert found is has_begun
