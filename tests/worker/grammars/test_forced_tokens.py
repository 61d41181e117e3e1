"""Forced tokens are those whose masks allow no other; refused drafts are those of brute force."""

import json
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from support.checkpoint_tokenizer import EOS_TOKEN_ID, save_tokenizer
from taco_worker.grammars.forced_tokens import allowed_nodes, forced_tokens
from taco_worker.grammars.row_masks import Draft
from taco_worker.grammars.vocabulary import load_vocabulary

ENDS = (EOS_TOKEN_ID,)
SCHEMA = {
    "type": "object",
    "properties": {
        "given_name": {"type": "string", "maxLength": 6},
        "status": {"enum": ["active user", "inactive user", "ünknown"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["given_name", "status", "age", "tags"],
    "additionalProperties": False,
}


def json_grammar(**options: Any) -> str:
    return json.dumps({"grammars": [{"json_schema": {**SCHEMA, "x-guidance": options}}]})


GRAMMARS = [
    json_grammar(whitespace_flexible=False),
    json_grammar(whitespace_pattern=r"[ \n]{0,3}"),
    'start: /[0-9]{4}-[0-9]{2}-01T00:00:00/ (" and so on" | " and then" | "")',
    'start: "the same " word ": the " word\nword: "quick" | "quiet"',
    "start: /[ab]{3}/",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> LLTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    vocab_size = save_tokenizer(folder)
    return load_vocabulary(folder, vocab_size, ENDS)


def matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    made = LLMatcher(tokenizer, grammar, log_level=0)
    assert not made.is_error(), made.get_error()
    return made


def mask(made: LLMatcher) -> list[int]:
    bits = np.unpackbits(np.frombuffer(made.compute_bitmask(), np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


def next_by_masks(made: LLMatcher, max_tokens: int) -> list[int]:
    """Forced tokens by computing every mask."""
    chain: list[int] = []
    while len(chain) < max_tokens:
        allowed = mask(made)
        if len(allowed) != 1 or allowed[0] in ENDS:
            break
        assert made.consume_token(allowed[0])
        chain += allowed
    return chain


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_forced_tokens_are_those_of_masks_with_one_token(
    tokenizer: LLTokenizer, grammar: str
) -> None:
    """On random walks; the chain leaves no trace in the matcher."""
    generator = np.random.default_rng(0)
    num_forced = 0
    for _ in range(10):
        made, path = matcher(tokenizer, grammar), list[int]()
        while len(path) < 80:
            limit = int(generator.integers(1, 20))
            chain = forced_tokens(made, limit, ENDS)
            other = matcher(tokenizer, grammar)
            assert not path or other.consume_tokens(path)
            assert chain == next_by_masks(other, limit)
            num_forced += len(chain)
            fresh = matcher(tokenizer, grammar)
            assert not path or fresh.consume_tokens(path)
            allowed = mask(made)
            assert allowed == mask(fresh)
            if set(allowed) <= set(ENDS):
                break
            free = [int(generator.choice([t for t in allowed if t not in ENDS]))]
            step = chain[: int(generator.integers(1, limit + 1))] or free
            assert made.consume_tokens(step)
            path += step
    assert num_forced > 0 or grammar == GRAMMARS[-1]


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_refused_drafts_are_those_of_brute_force(tokenizer: LLTokenizer, grammar: str) -> None:
    """Random trees of right, wrong and end tokens; afterwards the matcher is as before."""
    generator = np.random.default_rng(1)
    seen = set[bool]()
    for _ in range(30):
        made = matcher(tokenizer, grammar)
        prefix = forced_tokens(made, int(generator.integers(0, 8)), ENDS)
        assert not prefix or made.consume_tokens(prefix)
        before = mask(made)
        token_ids, parents, paths, expected = list[int](), list[int](), list[Any](), list[bool]()
        branch: list[int] = []
        for node in range(10):
            del branch[int(generator.integers(0, len(branch) + 1)) :]
            parent = branch[-1] if branch else -1
            branch.append(node)
            path = paths[parent] if parent >= 0 else prefix
            allowed: list[int] = []
            if path is not None:
                reached = matcher(tokenizer, grammar)
                assert not path or reached.consume_tokens(path)
                allowed = mask(reached)
            if allowed and generator.random() < 0.7:
                token_id = int(generator.choice(allowed))
            else:
                token_id = int(generator.integers(0, tokenizer.vocab_size))
                continues = path is not None and reached.validate_tokens([token_id]) == 1
                # Another spelling of a forced text is left to the masks.
                if continues and token_id not in allowed:
                    token_id = ENDS[0]
            is_allowed = token_id in allowed
            token_ids.append(token_id)
            parents.append(parent)
            expected.append(is_allowed)
            ends = not is_allowed or token_id in ENDS
            paths.append(None if ends else [*path, token_id])
        assert allowed_nodes(made, Draft(token_ids, parents), ENDS) == expected
        seen |= set(expected)
        assert mask(made) == before
    assert seen == {True, False}


def test_a_text_that_cannot_continue_forces_nothing(tokenizer: LLTokenizer) -> None:
    made = matcher(tokenizer, 'start: "ab"')
    assert not made.consume_tokens([tokenizer.tokenize_str("z")[0]])
    assert forced_tokens(made, 5, ENDS) == []
    assert allowed_nodes(made, Draft([3], [-1]), ENDS) == [False]


def test_a_long_text_is_drafted_only_at_its_end(tokenizer: LLTokenizer) -> None:
    """Each of its tokens would take as long as a step of the model."""
    made, count = matcher(tokenizer, 'start: "ab"{2000} /[xy]/'), 0
    while not (chain := forced_tokens(made, 15, ENDS)):
        (token_id,) = mask(made)
        assert made.consume_token(token_id)
        count += 1
    assert len(made.compute_ff_tokens()) <= 512
    assert count > 0
    assert len(chain) == 15
