"""The log probabilities of a message are those of the tokens with its text."""

from itertools import zip_longest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taco_gateway.protocol.responses_api.text_logprobs import TextLogprobs
from taco_gateway.text.output.token_logprobs import Candidate, TokenLogprob


def rows(*tokens: str | bytes) -> list[TokenLogprob]:
    """Entries of tokens. An empty token is not in the text."""
    encoded = [token.encode() if isinstance(token, str) else token for token in tokens]
    return [
        TokenLogprob(Candidate(number, "", token, -1.0, 1), (), in_text=bool(token))
        for number, token in enumerate(encoded)
    ]


def spelled(found: list[TokenLogprob]) -> list[bytes]:
    return [row.chosen.token_bytes for row in found]


def test_markers_are_dropped_although_they_have_the_same_letters() -> None:
    logprobs = TextLogprobs()
    logprobs.add(rows("<think>", "hi", "</think>", "\n\n", "t", " ok", ""))
    logprobs.drop("hi")
    assert spelled(logprobs.take("t ok")) == [b"t", b" ok"]


def test_the_last_place_of_a_short_text_counts() -> None:
    logprobs = TextLogprobs()
    logprobs.add(rows("</think>", "\n\n", "t"))
    assert spelled(logprobs.take("t")) == [b"t"]


def test_reasoning_is_dropped_where_the_text_is_in_no_token() -> None:
    logprobs = TextLogprobs()
    logprobs.add(rows("<think>", "hm", "</think>", "ﬁ"))  # normalization makes it two letters
    logprobs.drop("hm")
    assert spelled(logprobs.take("fi")) == [b"</think>", "ﬁ".encode()]


def test_text_that_is_held_back_keeps_its_entries() -> None:
    logprobs = TextLogprobs()
    logprobs.add(rows("a", "  ", "\n"))
    assert spelled(logprobs.take("a")) == [b"a"]
    logprobs.add(rows("b"))
    assert spelled(logprobs.take("  \nb")) == [b"  ", b"\n", b"b"]


def test_parts_of_a_character() -> None:
    logprobs = TextLogprobs()
    first, second = "😀".encode()[:1], "😀".encode()[1:]
    logprobs.add(rows("</think>", first))
    logprobs.add(rows(second))
    assert spelled(logprobs.take("😀")) == [first, second]


def test_a_token_with_the_beginning_of_the_text() -> None:
    logprobs = TextLogprobs()
    logprobs.add(rows(" Hello", " you"))  # the tokenizer strips the first space
    assert spelled(logprobs.take("Hello")) == [b" Hello"]
    assert spelled(logprobs.take(" you")) == [b" you"]


def test_a_text_that_is_in_no_token_takes_all() -> None:
    logprobs = TextLogprobs()
    logprobs.add(rows("a", "b"))
    assert spelled(logprobs.take("�")) == [b"a", b"b"]


@pytest.mark.parametrize("drop", [True, False])
def test_what_was_dropped_does_not_come_back(drop: bool) -> None:
    logprobs = TextLogprobs()
    logprobs.add(rows("x", "y"))
    if drop:
        logprobs.drop_all()
    assert spelled(logprobs.take("y")) == ([] if drop else [b"y"])


tokens = st.lists(st.text("abü<> ", min_size=1, max_size=3), min_size=1, max_size=12)


@given(tokens, st.lists(st.integers(1, 3)), st.lists(st.integers(0, 3)))
def test_entries_of_a_message_add_up_to_its_text(
    pieces: list[str], groups: list[int], lags: list[int]
) -> None:
    """Tokens come in groups of any size, and their text may lag behind."""
    logprobs, taken, num_added, num_shown = TextLogprobs(), b"", 0, 0
    entries = rows(*pieces)
    for group, lag in zip_longest(groups, [*lags, 0], fillvalue=1):
        end = min(num_added + group, len(pieces))
        logprobs.add(entries[num_added:end])
        num_added = end
        shown = max(num_added - lag, num_shown)
        if shown > num_shown:
            taken += b"".join(spelled(logprobs.take("".join(pieces[num_shown:shown]))))
            num_shown = shown
        assert taken == "".join(pieces[:num_shown]).encode()
