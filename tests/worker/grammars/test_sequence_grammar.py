"""A sequence's masks and errors depend on its own text alone, though matchers share states."""

import random
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from support.checkpoint_tokenizer import EOS_TOKEN_ID, save_tokenizer
from taco_proto.steps import RowErrorCode
from taco_worker.grammars.compiled_grammar import CompiledGrammar
from taco_worker.grammars.limits import parser_limits
from taco_worker.grammars.row_masks import Draft
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
