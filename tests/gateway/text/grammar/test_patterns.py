"""Patterns of JSON schemas in texts that are not JSON match as a search does."""

import itertools
import re

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from taco_gateway.text.grammar.canonical import ConstraintError, canonical_text
from taco_gateway.text.grammar.patterns import search
from taco_gateway.text.grammar.validation import _ByteTokens, check_text_pattern

PATTERNS = (
    "", "a", "^a", "a$", "^a$", "^$", "^", "$",
    "^a|b", "a|b$", "a|^b$", "^a|b$", "^a$|^b$", "^(a|b)$", "(?:a|b)b", "^a|", "(?i)^A|B$",
    r"^a\$", r"^a\\$", r"\\\\$", r"^\^|\|$", "^[|$]a|[^a|]$", "^[]|]a|b$", "^[^]|]a|b$",
    "a/b", r"a\/b", r"\\/", r"^[/]|[\/]$", "a\nb", "a\\\nb", r"a\nb",
)  # fmt: skip
TEXTS = ["".join(part) for n in range(4) for part in itertools.product("abA|$^\\/]\n", repeat=n)]


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_ByteTokens(0)), slices=[])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_matches_any_part_of_a_text(pattern: str, tokenizer: LLTokenizer) -> None:
    check_text_pattern(pattern)
    grammar = canonical_text({"lark_grammar": f"start: T\nT: {search(pattern)}"})
    whole = LLMatcher(tokenizer, grammar, log_level=0)
    # In Python an anchor at the end also matches before a line break.
    judge = re.compile(re.sub(r"(?<!\\)((?:\\\\)*)\$(?!\])", r"\1\\Z", pattern))
    for text in TEXTS:
        matcher, tokens = whole.deep_copy(), list(text.encode())
        matches = matcher.validate_tokens(tokens) == len(tokens) and (
            matcher.consume_tokens(tokens) and matcher.is_accepting()
        )
        assert matches == bool(judge.search(text)), text


@pytest.mark.parametrize("pattern", ["(?=a)b", r"\bfoo", "a(", "(^a|b)c"])
def test_a_pattern_that_cannot_be_enforced_is_named(pattern: str) -> None:
    with pytest.raises(ConstraintError, match=r"^keyword 'pattern'") as raised:
        check_text_pattern(pattern)
    assert "start:" not in str(raised.value)
