"""Beam search written down a second time, over whole texts: no shared state, no early exits."""

import math
from collections.abc import Callable, Sequence

# Log probabilities of all tokens after a text.
Model = Callable[[tuple[int, ...]], Sequence[float]]
Text = tuple[float, tuple[int, ...]]  # its score and its tokens


def score(text: tuple[int, ...], model: Model, penalty: float) -> float:
    total = sum(model(text[:i])[token] for i, token in enumerate(text))
    return total / len(text) ** penalty


def beam_search(
    model: Model,
    width: int,
    max_tokens: int,
    *,
    ends: frozenset[int] = frozenset(),
    penalty: float = 1.0,
    early_stopping: bool | str = False,
) -> list[Text]:
    """The best `width` texts, best first.

    Every step sorts all continuations of all beams by their sums.
    """
    beams: list[tuple[int, ...]] = [()]
    complete: list[Text] = []
    for length in range(1, max_tokens + 1):
        longer = [
            (*beam, token)
            for beam in beams
            for token, logprob in enumerate(model(beam))
            if logprob > -math.inf
        ]
        longer.sort(key=lambda text: -score(text, model, 0.0))
        is_over = [text[-1] in ends or length == max_tokens for text in longer]
        complete += [
            (score(text, model, penalty), text)
            for text, over in zip(longer[:width], is_over, strict=False)
            if over
        ]
        complete = sorted(complete, key=lambda entry: -entry[0])[:width]
        beams = [text for text, over in zip(longer, is_over, strict=True) if not over][:width]
        if not beams:
            break
        if len(complete) == width:
            if early_stopping is True:
                break
            at = max_tokens if early_stopping == "never" and penalty > 0 else length
            if score(beams[0], model, 0.0) / at**penalty <= complete[-1][0]:
                break
    return complete


def all_texts(model: Model, num_tokens: int, max_tokens: int, ends: frozenset[int]) -> set:
    """Every text that can be complete."""
    texts: set[tuple[int, ...]] = set()
    growing: list[tuple[int, ...]] = [()]
    for length in range(1, max_tokens + 1):
        longer = [(*text, token) for text in growing for token in range(num_tokens)]
        texts |= {text for text in longer if text[-1] in ends or length == max_tokens}
        growing = [text for text in longer if text[-1] not in ends]
    return texts
