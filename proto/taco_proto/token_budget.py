"""The number of tokens that a part of an answer may have, next to the grammar of the answer."""

import json
from dataclasses import asdict, dataclass

_HEAD = '{"budget":'
# A text as plain parts and, by id, tokens without text.
Pieces = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBudget:
    """A limit on the tokens between two markers of an answer.

    Attributes:
        max_tokens: number of tokens, after which `end_token_ids` follow.
        opens: markers of which one may begin the answer; empty: the part has begun before it.
        closes: markers that end the part.
        end_token_ids: tokens that write one of `closes`.
    """

    max_tokens: int
    opens: tuple[Pieces, ...]
    closes: tuple[Pieces, ...]
    end_token_ids: tuple[int, ...]


def with_budget(grammar: str, budget: TokenBudget) -> str:
    """A canonical grammar with a budget in front."""
    return f"{_HEAD}{json.dumps(asdict(budget))},{grammar.removeprefix('{')}"


def split_budget(text: str) -> tuple[str, TokenBudget | None]:
    """A canonical grammar and the budget in front of it.

    Raises:
        ValueError: the text does not come from `with_budget`.
    """
    if not text.startswith(_HEAD):
        return text, None
    try:
        given, end = json.JSONDecoder().raw_decode(text, len(_HEAD))
        budget = TokenBudget(
            max_tokens=int(given["max_tokens"]),
            opens=tuple(map(_pieces, given["opens"])),
            closes=tuple(map(_pieces, given["closes"])),
            end_token_ids=tuple(map(int, given["end_token_ids"])),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"invalid token budget: {error}") from None
    return "{" + text[end:].removeprefix(","), budget


def _pieces(given: list[str | int]) -> Pieces:
    return tuple(piece if isinstance(piece, str) else int(piece) for piece in given)
