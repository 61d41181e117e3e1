"""Special tokens are found as `re` finds them, in pieces."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taco_gateway.text.chat_template import special_token_search
from taco_gateway.text.chat_template.special_token_search import SpecialTokenSearch

_TEXTS = st.text(alphabet="<|ab>", max_size=40)
_TOKENS = st.lists(st.text(alphabet="<|ab>", min_size=1, max_size=6), max_size=5, unique=True)


def found_in_one_search(tokens: list[str], text: str) -> list[tuple[int, int]]:
    ordered = sorted(tokens, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
    return [match.span() for match in pattern.finditer(text)]


@given(_TOKENS, _TEXTS, st.integers(1, 8))
def test_finds_the_same_as_one_search(tokens: list[str], text: str, piece_chars: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(special_token_search, "PIECE_CHARS", piece_chars)
        found = [match.span() for match in SpecialTokenSearch(tokens).matches(text)]
    assert found == found_in_one_search(tokens, text)


class CountingPattern:
    """Attributes:
    longest: most characters that one search could read.
    """

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self.longest = 0

    def search(self, text: str, start: int, end: int) -> re.Match[str] | None:
        self.longest = max(self.longest, min(end, len(text)) - start)
        return self._pattern.search(text, start, end)


def test_one_search_reads_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [f"<|reserved_special_token_{i}|>" for i in range(256)]
    search = SpecialTokenSearch(tokens)
    pattern = CountingPattern(search._pattern)
    monkeypatch.setattr(search, "_pattern", pattern)
    text = "<|r" * 100_000 + tokens[-1] + "<|r"
    assert [match[0] for match in search.matches(text)] == [tokens[-1]]
    assert pattern.longest <= special_token_search.PIECE_CHARS + max(map(len, tokens))


def test_no_special_tokens() -> None:
    assert list(SpecialTokenSearch([]).matches("<|a|>")) == []


@given(_TOKENS, _TEXTS)
def test_finds_the_beginning_of_a_token_at_the_end(tokens: list[str], text: str) -> None:
    fitting = [
        text[-size:]
        for size in range(1, len(text) + 1)
        if any(token.startswith(text[-size:]) and len(token) > size for token in tokens)
    ]
    found = SpecialTokenSearch(tokens).beginning_at_end(text)
    assert found == max(fitting, key=len, default="")


def test_white_space_that_begins_a_token_is_no_beginning() -> None:
    search = SpecialTokenSearch(["\n \n<a>"])
    assert search.beginning_at_end("x\n \n") == ""
    assert search.beginning_at_end("x\n \n<") == "\n \n<"
