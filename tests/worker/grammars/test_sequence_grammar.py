"""A sequence's masks and errors depend on its own text alone, though matchers share states."""

import random
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from support.byte_vocabulary import EOS_MASK as BYTE_EOS_MASK
from support.byte_vocabulary import ids_of, matcher_of
from support.checkpoint_tokenizer import EOS_TOKEN_ID, save_tokenizer
from taco_proto.grammars import MAX_FORCED_TOKENS
from taco_proto.steps import RowErrorCode
from taco_worker.grammars.compiled_grammar import CompiledGrammar
from taco_worker.grammars.limits import parser_limits
from taco_worker.grammars.matcher import Matcher
from taco_worker.grammars.row_masks import Draft, RowMasks
from taco_worker.grammars.sequence_grammar import SequenceGrammar
from taco_worker.grammars.vocabulary import load_vocabulary
from taco_worker.sampling.token_masks import mask_of

VOCAB_SIZE = 400
EOS_MASK = mask_of([EOS_TOKEN_ID], VOCAB_SIZE)
# Its lexer makes new states for every character.
WIDE = r"(\w{1,999}[^\W\d]{1,999}){1,999}"
LENGTH = 12

Walk = list[tuple[bytes, str]]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> LLTokenizer:
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(directory)
    return load_vocabulary(directory, VOCAB_SIZE, [EOS_TOKEN_ID])


def compiled(vocabulary: LLTokenizer) -> CompiledGrammar:
    grammar = LLMatcher.grammar_from_regex(WIDE)
    return CompiledGrammar(
        lambda: LLMatcher(vocabulary, grammar, log_level=0, limits=parser_limits())
    )


def sequence_of(grammar: CompiledGrammar) -> SequenceGrammar:
    future: Future[CompiledGrammar] = Future()
    future.set_result(grammar)
    return SequenceGrammar(future, 0, 0, [], min_tokens=0, ignores_eos=True)


def walk(sequence: SequenceGrammar, seed: int, length: int = LENGTH) -> Walk:
    """The masks and errors along a random text."""
    choices, steps = random.Random(seed), Walk()
    for _ in range(length):
        masks = sequence.masks(Draft([], []), EOS_MASK)
        steps.append((masks.bits.tobytes(), masks.error))
        if masks.error:
            assert masks.error_code in (RowErrorCode.GRAMMAR_LIMIT, RowErrorCode.NO_ALLOWED_TOKEN)
            break
        bits = np.unpackbits(masks.bits[0].view(np.uint8), bitorder="little")
        sequence.unread.append(choices.choice(np.flatnonzero(bits).tolist()))
        sequence.num_tokens += 1
    return steps


def test_a_text_that_exceeds_a_limit_fails_alone(vocabulary: LLTokenizer) -> None:
    alone = [walk(sequence_of(compiled(vocabulary)), seed) for seed in range(20)]
    assert not any(steps[-1][1] for steps in alone)
    shared = compiled(vocabulary)
    long = walk(sequence_of(shared), 99, length=2000)
    assert long[-1][1]
    assert [walk(sequence_of(shared), seed) for seed in range(20)] == alone
    assert walk(sequence_of(compiled(vocabulary)), 99, length=2000) == long


def test_a_text_continues_when_others_have_used_up_its_limits(vocabulary: LLTokenizer) -> None:
    shared = compiled(vocabulary)
    running, lonely = sequence_of(shared), sequence_of(compiled(vocabulary))
    before = walk(running, 5), walk(lonely, 5)
    walk(sequence_of(shared), 99, length=2000)
    assert before[0] == before[1]
    assert walk(running, 6) == walk(lonely, 6)
    running.unread.append(EOS_TOKEN_ID + 40)
    lonely.unread.append(EOS_TOKEN_ID + 40)
    assert running.read().compute_bitmask() == lonely.read().compute_bitmask()


class LimitedMatcher:
    """A matcher that exceeds a limit with a mask behind a "d"."""

    def __init__(self, inner: Matcher) -> None:
        self._inner, self._is_failed, self._last = inner, False, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def deep_copy(self) -> "LimitedMatcher":
        return LimitedMatcher(self._inner.deep_copy())

    def consume_token(self, token: int) -> bool:
        self._last = token
        return self._inner.consume_token(token)

    def compute_bitmask(self) -> bytes:
        self._is_failed |= self._last == ord("d")
        return self._inner.compute_bitmask()

    def is_error(self) -> bool:
        return self._is_failed

    def get_error(self) -> str:
        return "lexer error: too many states"


def masks_of(make: Callable[[], Matcher], text: str, draft: Draft) -> RowMasks:
    sequence = sequence_of(CompiledGrammar(make))
    sequence.unread, sequence.num_tokens = list(text.encode()), len(text)
    masks = sequence.masks(draft, BYTE_EOS_MASK)
    # The sequence continues as if there had been no drafts.
    following = sequence.masks(Draft([], []), BYTE_EOS_MASK)
    assert not following.error
    assert following.bits[0].tolist() == masks.bits[0].tolist()
    return masks


# Drafts "dbb" and "a" behind "d", "a" with "b" and "c" behind it, another "d", and "aa" at the end.
TREE = Draft([*b"dbbaabcda"], [-1, 0, 1, 0, -1, 4, 4, -1, 4])


@pytest.mark.parametrize("cause", ["dead end", "limit", "long text"])
def test_a_draft_that_fails_takes_only_the_drafts_behind_it_along(cause: str) -> None:
    if cause == "limit":
        code = RowErrorCode.GRAMMAR_LIMIT

        def make() -> Matcher:
            return LimitedMatcher(matcher_of("start: /a[ad][a-c]{5}/"))

    elif cause == "long text":
        code, count = RowErrorCode.GRAMMAR_LIMIT, MAX_FORCED_TOKENS + 1

        def make() -> Matcher:
            return matcher_of(f'start: "a" ("a" /[a-c]{{5}}/ | "d" /b{{{count}}}/)')

    else:
        code = RowErrorCode.NO_ALLOWED_TOKEN

        def make() -> Matcher:
            return matcher_of('start: "a" ("a" /[a-c]{5}/ | "d" end)\nend: /[^\\s\\S]/')

    masks = masks_of(make, "a", TREE)
    assert (masks.error_code, masks.failed_draft) == (code, 0)
    allowed = [ids_of(bits) for bits in masks.bits]
    dead = {0, 1, 2, 3, 7}
    assert [node for node in range(9) if not allowed[node + 1]] == sorted(dead)
    assert {ord("a"), ord("d")} <= allowed[0]
    for node in {4, 5, 6, 8}:
        assert {ord("a"), ord("b"), ord("c")} <= allowed[node + 1]


def test_a_text_at_a_dead_end_is_an_error_whatever_follows() -> None:
    sequence = sequence_of(CompiledGrammar(lambda: matcher_of('start: "a" end\nend: /[^\\s\\S]/')))
    sequence.unread, sequence.num_tokens = [ord("a")], 1
    masks = sequence.masks(TREE, BYTE_EOS_MASK)
    assert (masks.error_code, masks.failed_draft) == (RowErrorCode.NO_ALLOWED_TOKEN, None)


def test_a_text_that_is_too_long_is_not_read_again() -> None:
    compiled = CompiledGrammar(lambda: matcher_of(f"start: /a{{{MAX_FORCED_TOKENS + 1}}}/"))
    compiled.separate = lambda: pytest.fail("read again")  # type: ignore[method-assign]
    masks = sequence_of(compiled).masks(Draft([], []), BYTE_EOS_MASK)
    assert (masks.error_code, masks.failed_draft) == (RowErrorCode.GRAMMAR_LIMIT, None)
