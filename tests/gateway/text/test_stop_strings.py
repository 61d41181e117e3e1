"""Stop strings against a search through the whole text."""

from hypothesis import given
from hypothesis import strategies as st

from taco_gateway.text.output.stop_strings import StopStrings

TEXT = st.text("ab\n", max_size=40)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=6), min_size=1, max_size=4)


def first_hit(text: str, strings: list[str]) -> tuple[int, str] | None:
    """(end, string) of the stop string that is complete first; the longest of those."""
    hits = [(text.find(s) + len(s), -len(s), s) for s in strings if s in text]
    return (min(hits)[0], min(hits)[2]) if hits else None


@given(text=TEXT, strings=STOPS, cuts=st.lists(st.integers(0, 4), max_size=30), keep=st.booleans())
def test_however_the_text_is_cut_the_hit_is_the_same(
    text: str, strings: list[str], cuts: list[int], keep: bool
) -> None:
    stops = StopStrings(strings, include=keep)
    shown, rest, fed = "", text, ""
    for count in [*cuts, len(text)]:
        shown += stops.feed(rest[:count])
        fed, rest = fed + rest[:count], rest[count:]
        if stops.hit is not None:
            break
        assert shown + fed[len(shown) :] == fed
        assert len(fed) - len(shown) == stops.num_held == longest_beginning(fed, strings)
    expected = first_hit(text, strings)
    if expected is None:
        assert stops.hit is None
        assert shown + stops.flush() == text
    else:
        end, string = expected
        assert stops.hit == string
        assert shown == text[: end if keep else end - len(string)]
        assert stops.num_held == 0


def longest_beginning(text: str, strings: list[str]) -> int:
    """Characters at the end of the text that could be the beginning of a stop string."""
    return max(k for s in strings for k in range(len(s)) if text.endswith(s[:k]))


def test_a_long_string_of_repeats_costs_no_more_than_its_text() -> None:
    string = "a" * 4000 + "b" + "a" * 4000
    stops = StopStrings([string])
    text = "a" * 20_000
    assert "".join(stops.feed(char) for char in text) + stops.flush() == text
    stops = StopStrings([string])
    assert stops.feed("xx" + string + "yy") == "xx"
    assert stops.hit == string
