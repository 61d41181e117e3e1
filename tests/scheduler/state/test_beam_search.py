"""The rules of beam search, against a second version of them and against all texts that exist."""

import math
import random
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.beam_oracle import Model, Text, all_texts, beam_search, score
from support.beam_schedule import run_search
from taco_scheduler.state.beam_search import BeamSearch, Candidates

NUM_TOKENS = 6
ENDS = frozenset({0, 3})


def random_model(seed: int, num_tokens: int = NUM_TOKENS, banned: float = 0.0) -> Model:
    @cache
    def model(text: tuple[int, ...]) -> tuple[float, ...]:
        rng = random.Random(f"{seed} {text}")
        logits = [rng.gauss(0, 2) for _ in range(num_tokens)]
        total = math.log(sum(map(math.exp, logits)))
        return tuple(-math.inf if rng.random() < banned else x - total for x in logits)

    return model


def candidates_of(model: Model, count: int) -> Callable[[tuple[int, ...]], Candidates]:
    """The most likely tokens behind a text."""

    def candidates_after(text: tuple[int, ...]) -> Candidates:
        logprobs = model(text)
        best = sorted(range(len(logprobs)), key=lambda token: -logprobs[token])[:count]
        return Candidates(best[0], best, [logprobs[token] for token in best])

    return candidates_after


def search_with(
    model: Model,
    width: int,
    max_tokens: int,
    *,
    ends: frozenset[int] = frozenset(),
    penalty: float = 1.0,
    early_stopping: bool | str = False,
) -> list[Text]:
    """The search as the scheduler runs it: with few candidates of each beam."""
    search = BeamSearch(width, penalty, early_stopping)  # type: ignore[arg-type]
    run_search(search, candidates_of(model, width + len(ends)), ends, max_tokens)
    for text in search.finished:
        assert text.is_stopped == (text.beam.token_id in ends)
    return [
        (text.score, tuple(beam.token_id for beam in text.beam.path())) for text in search.finished
    ]


@settings(max_examples=300)
@given(
    seed=st.integers(0, 10**6),
    width=st.integers(1, 8),
    max_tokens=st.integers(1, 8),
    ends=st.sets(st.integers(0, NUM_TOKENS - 1), max_size=3).map(frozenset),
    penalty=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]),
    early_stopping=st.sampled_from([True, False, "never"]),
    banned=st.sampled_from([0.0, 0.0, 0.3]),
)
def test_the_texts_are_those_of_a_search_over_all_tokens(
    seed: int,
    width: int,
    max_tokens: int,
    ends: frozenset[int],
    penalty: float,
    early_stopping: bool | str,
    banned: float,
) -> None:
    model = random_model(seed, banned=banned)
    options = {"ends": ends, "penalty": penalty, "early_stopping": early_stopping}
    found = search_with(model, width, max_tokens, **options)  # type: ignore[arg-type]
    expected = beam_search(model, width, max_tokens, **options)  # type: ignore[arg-type]
    assert [text for _, text in found] == [text for _, text in expected]
    assert [s for s, _ in found] == pytest.approx([s for s, _ in expected])


@pytest.mark.parametrize("penalty", [-0.5, 0.0, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(20))
def test_a_search_as_wide_as_all_texts_finds_the_best_ones(seed: int, penalty: float) -> None:
    model, ends, max_tokens = random_model(seed, num_tokens=3), frozenset({1}), 4
    texts = all_texts(model, 3, max_tokens, ends)
    best = sorted(texts, key=lambda text: -score(text, model, penalty))
    found = search_with(
        model, len(texts), max_tokens, ends=ends, penalty=penalty, early_stopping="never"
    )
    assert [text for _, text in found] == best


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(20))
def test_never_stops_only_if_no_beam_can_become_better(seed: int, penalty: float) -> None:
    model = random_model(seed)
    found = search_with(model, 3, 7, ends=ENDS, penalty=penalty, early_stopping="never")
    # An unreachable extra text makes the set of complete texts never full, so the search goes
    # through to the last token.
    search = BeamSearch(3, penalty, "never")
    search._may_improve = lambda beams, *lengths: bool(beams)  # type: ignore[method-assign]
    run_search(search, candidates_of(model, 5), ENDS, 7)
    assert [text for _, text in found] == [
        tuple(beam.token_id for beam in text.beam.path()) for text in search.finished
    ]


def test_early_stopping_ends_with_as_many_texts_as_beams() -> None:
    """Text 0 ends at once; the texts behind 1 are better by far, but come later."""

    def model(text: tuple[int, ...]) -> tuple[float, ...]:
        return (-1.0, -1.1, -9.0) if not text else (-1.0, -0.1, -3.0)

    ends = frozenset({0, 2})
    first = search_with(model, 2, 9, ends=ends, early_stopping=True)
    assert max(len(text) for _, text in first) == 2
    longest = search_with(model, 2, 9, ends=ends, early_stopping="never")
    assert longest[0][1] == (1,) * 9


def test_the_most_likely_tokens_of_each_place_are_kept() -> None:
    search = BeamSearch(2, 1.0, False, num_top=2)
    row = Candidates(5, [5, 6, 7, 8], [-0.1, -0.2, -0.3, -0.4])
    assert search.advance([row], {6}.__contains__, 3)
    (first, second) = search.beams
    assert (first.token_id, first.rank, second.token_id, second.rank) == (5, 1, 7, 3)
    assert first.top == second.top == ((5, -0.1), (6, -0.2))
    assert [text.beam.token_id for text in search.finished] == [6]


def test_long_beams_are_freed_without_recursion() -> None:
    search = BeamSearch(1, 1.0, False)
    for _ in range(200_000):
        search.advance([Candidates(1, [1], [-0.1])], {0}.__contains__, 10**6)
    assert search.beams[0].num_tokens == 200_000
    search.beams.clear()
