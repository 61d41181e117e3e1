"""A matcher that ends a part of the answer when its tokens are spent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from taco_proto.token_budget import Pieces, TokenBudget
from taco_worker.grammars.matcher import Matcher

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_NUM_BYTES = 256


class Phase(Enum):
    BEFORE = "before"
    INSIDE = "inside"
    BEHIND = "behind"


@dataclass(frozen=True, slots=True)
class BudgetState:
    """What an answer's tokens say about its budget.

    Attributes:
        pending: `BEFORE`: the symbols of the answer.
        found: `INSIDE`: number of symbols of each closing marker that the text ends with.
        num_tokens: `INSIDE`: tokens of the part.
        num_end_tokens: `INSIDE`: number of the budget's end tokens that the part ends with.
    """

    phase: Phase
    pending: tuple[int, ...] = ()
    found: tuple[int, ...] = ()
    num_tokens: int = 0
    num_end_tokens: int = 0


_BEHIND = BudgetState(Phase.BEHIND)


class BudgetRules:
    """Follows the markers of a budget. Shared by the matchers of a grammar.

    A marker is found in the bytes of the tokens, however they divide it. A token without text is
    one symbol.
    """

    def __init__(self, budget: TokenBudget, vocabulary: LLTokenizer) -> None:
        self._budget = budget
        self._vocabulary = vocabulary
        self._opens = [tuple(_symbols(pieces)) for pieces in budget.opens]
        self._closes = [tuple(_symbols(pieces)) for pieces in budget.closes]
        self._fallbacks = [_fallbacks(close) for close in self._closes]
        self._end_fallbacks = _fallbacks(budget.end_token_ids)

    def start(self) -> BudgetState:
        return BudgetState(Phase.BEFORE) if self._opens else self._inside()

    def after(self, state: BudgetState, token_id: int) -> BudgetState:
        """The state after a token."""
        if state.phase is Phase.BEHIND:
            return state
        symbols = self._symbols_of(token_id)
        if state.phase is Phase.BEFORE:
            pending = state.pending
            for index, symbol in enumerate(symbols):
                pending += (symbol,)
                if pending in self._opens:
                    return self._closed_or(self._inside(), symbols[index + 1 :])
            if any(one[: len(pending)] == pending for one in self._opens):
                return BudgetState(Phase.BEFORE, pending)
            return _BEHIND
        ends = self._budget.end_token_ids
        advanced = BudgetState(
            Phase.INSIDE,
            found=state.found,
            num_tokens=state.num_tokens + 1,
            num_end_tokens=_next(ends, self._end_fallbacks, state.num_end_tokens, token_id)
            % len(ends),
        )
        return self._closed_or(advanced, symbols)

    def forced_token(self, state: BudgetState) -> int | None:
        """The token that has to come next; None: the budget does not say."""
        if state.phase is not Phase.INSIDE or state.num_tokens < self._budget.max_tokens:
            return None
        return self._budget.end_token_ids[state.num_end_tokens]

    def _inside(self) -> BudgetState:
        return BudgetState(Phase.INSIDE, found=(0,) * len(self._closes))

    def _closed_or(self, state: BudgetState, symbols: Sequence[int]) -> BudgetState:
        """The state after more symbols of a part."""
        found = list(state.found)
        for symbol in symbols:
            for index, close in enumerate(self._closes):
                found[index] = _next(close, self._fallbacks[index], found[index], symbol)
                if found[index] == len(close):
                    return _BEHIND
        return BudgetState(
            Phase.INSIDE,
            found=tuple(found),
            num_tokens=state.num_tokens,
            num_end_tokens=state.num_end_tokens,
        )

    def _symbols_of(self, token_id: int) -> Sequence[int]:
        if self._vocabulary.is_special_token(token_id):
            return (_NUM_BYTES + token_id,)
        return self._vocabulary.decode_bytes([token_id])


@dataclass(slots=True)
class BudgetedMatcher:
    """A matcher of a grammar in which a part of the answer has a limited number of tokens.

    Then it allows only the next token of the marker that ends the part. Within a character whose
    bytes are incomplete it waits for the rest.

    Attributes:
        states: before the first token, and after each.
    """

    inner: Matcher
    rules: BudgetRules
    states: list[BudgetState] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.states:
            self.states.append(self.rules.start())

    def compute_bitmask(self) -> bytes:
        mask = self.inner.compute_bitmask()
        forced = self.rules.forced_token(self.states[-1])
        if forced is None or not mask[forced // 8] >> forced % 8 & 1:
            return mask
        only = bytearray(len(mask))
        only[forced // 8] = 1 << forced % 8
        return bytes(only)

    def is_error(self) -> bool:
        return self.inner.is_error()

    def get_error(self) -> str:
        return self.inner.get_error()

    def is_accepting(self) -> bool:
        return self._forced() is None and self.inner.is_accepting()

    def consume_token(self, token: int) -> bool:
        return self.consume_tokens([token])

    def consume_tokens(self, tokens: list[int]) -> bool:
        if not self.inner.consume_tokens(tokens):
            return False
        for token in tokens:
            self.states.append(self.rules.after(self.states[-1], token))
        return True

    def validate_tokens(self, tokens: list[int]) -> int:
        """How many of the tokens are allowed, one after the other."""
        forced = self._forced()
        if forced is not None and tokens[:1] != [forced]:
            return 0
        count = self.inner.validate_tokens(tokens)
        state = self.states[-1]
        for index, token in enumerate(tokens[:count]):
            forced = self.rules.forced_token(state)
            if index and forced is not None and token != forced:
                return index
            state = self.rules.after(state, token)
        return count

    def rollback(self, num_tokens: int) -> bool:
        if not self.inner.rollback(num_tokens):
            return False
        del self.states[len(self.states) - num_tokens :]
        return True

    def compute_ff_tokens(self) -> list[int]:
        forced = self._forced()
        return self.inner.compute_ff_tokens() if forced is None else [forced]

    def deep_copy(self) -> BudgetedMatcher:
        return BudgetedMatcher(self.inner.deep_copy(), self.rules, list(self.states))

    def _forced(self) -> int | None:
        """The token that has to come next; None: the grammar decides."""
        forced = self.rules.forced_token(self.states[-1])
        if forced is None or not self.inner.validate_tokens([forced]):
            return None
        return forced


def _symbols(pieces: Pieces) -> Iterator[int]:
    for piece in pieces:
        if isinstance(piece, str):
            yield from piece.encode()
        else:
            yield _NUM_BYTES + piece


def _fallbacks(pattern: Sequence[int]) -> list[int]:
    """For each beginning of a pattern: the length of its longest proper ending that begins it.

    Knuth, Morris and Pratt 1977, "Fast pattern matching in strings".
    """
    lengths = [0] * (len(pattern) + 1)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = lengths[length]
        length += pattern[index] == pattern[length]
        lengths[index + 1] = length
    return lengths


def _next(pattern: Sequence[int], fallbacks: list[int], length: int, symbol: int) -> int:
    """How much of a pattern a text ends with, after one more symbol."""
    if length == len(pattern):
        length = fallbacks[length]
    while length and pattern[length] != symbol:
        length = fallbacks[length]
    return length + (pattern[length] == symbol)
