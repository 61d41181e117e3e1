"""Derives the merge list of a byte-pair encoding from the priorities of its tokens.

SentencePiece and tiktoken store tokens with a priority and no merges: they merge any two neighbours
whose concatenation is a token, the highest priority first and the leftmost pair among equals. The
`tokenizers` library has an ordered list of pairs instead, in which all pairs of one token have
different ranks.
"""

from collections.abc import Container, Iterable
from typing import TypeVar

_Text = TypeVar("_Text", str, bytes)


def merges_of(
    tokens_by_priority: Iterable[_Text], parts: Container[_Text]
) -> list[tuple[_Text, _Text]]:
    """All pairs of `parts` that are together a token, in the order of the tokens.

    The order of one token's pairs matters where two of them overlap: a, b, c with a+b == b+c. Then
    a has as many characters as c, `p`, and the token repeats itself after `p`. The leftmost pair
    must win, so the cut after `p` is before the cut `p` from the end. For a token such as "aaa"
    both cuts are of that kind; the one with the longer left side is first, because merges from the
    left leave the shorter rest on the right.

    Args:
        tokens_by_priority: the tokens that merges may produce, the first merge first.
        parts: the tokens that merges may consume.
    """
    merges: list[tuple[_Text, _Text]] = []
    for token in tokens_by_priority:
        cuts = [
            cut for cut in range(1, len(token)) if token[:cut] in parts and token[cut:] in parts
        ]
        if len(cuts) > 1:
            cuts = _leftmost_first(token, cuts)
        merges += [(token[:cut], token[cut:]) for cut in cuts]
    return merges


def _leftmost_first(token: str | bytes, cuts: list[int]) -> list[int]:
    length = len(token)
    ordered = sorted(cuts, reverse=True)
    for cut in sorted(cuts):
        opposite = length - cut
        # A cut with a short left side precedes its opposite, unless the token is a power.
        if (
            cut < opposite
            and opposite in ordered
            and token[cut:] == token[:opposite]
            and token[opposite:] != token[:cut]
        ):
            ordered.remove(cut)
            ordered.insert(ordered.index(opposite), cut)
    return ordered
