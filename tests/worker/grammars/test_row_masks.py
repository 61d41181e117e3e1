"""Masks equal brute force over a small vocabulary, also behind drafts."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from llguidance import LLMatcher

from support import sampling_cases as cases
from support.byte_vocabulary import EOS, EOS_MASK, TOKENS, byte_tokenizer, ids_of, matcher_of
from taco_proto.grammars import MAX_FORCED_TOKENS
from taco_proto.steps import RowErrorCode
from taco_worker.grammars.limits import parser_limits
from taco_worker.grammars.row_masks import Draft, RowMasks
from taco_worker.sampling.token_masks import mask_logits, mask_of, num_words

PAIRS = """%llguidance {"no_forcing": true}
start: "{" pair ("," pair)? "}"
pair: "\\"a\\":" ("true" | "1")"""
# A language as a grammar and as the set of all its texts.
LANGUAGES: list[tuple[str, set[bytes]]] = [
    ('start: "ab" | "abba" | "b" | ""', {b"ab", b"abba", b"b", b""}),
    ("start: /[ab]{1,4}c?/", {
        "".join(letters).encode() + end
        for count in range(1, 5)
        for letters in itertools.product("ab", repeat=count)
        for end in (b"", b"c")
    }),
    (PAIRS, {
        b"{" + b",".join(pairs) + b"}"
        for count in (1, 2)
        for pairs in itertools.product((b'"a":true', b'"a":1'), repeat=count)
    }),
]  # fmt: skip


def allowed(texts: set[bytes], before: bytes) -> set[int]:
    """Tokens that may follow, by trying all of them."""
    found = {
        token_id
        for token_id, token in enumerate(TOKENS)
        if token_id not in EOS and any(text.startswith(before + token) for text in texts)
    }
    return found | set(EOS) if before in texts else found


def masks_of(made: LLMatcher, unread: list[int], draft: Draft | None = None, **changes: Any) -> Any:
    settings: dict[str, Any] = {"num_generated": 0, "min_tokens": 0, "ignores_eos": False}
    return RowMasks.of(made, unread, draft or Draft([], []), EOS_MASK, **settings | changes)


@pytest.mark.parametrize(("lark", "texts"), LANGUAGES)
def test_masks_are_those_of_brute_force(lark: str, texts: set[bytes]) -> None:
    """On random walks, with each step's token read one call later, as in the worker."""
    generator = np.random.default_rng(0)
    for _ in range(60):
        made, before, unread = matcher_of(lark), b"", list[int]()
        while True:
            masks = masks_of(made, unread)
            expected = allowed(texts, before)
            assert ids_of(masks.bits[0]) == expected
            assert not masks.error
            assert masks.is_complete[0] == (expected <= set(EOS))
            others = sorted(expected - set(EOS))
            if not others or (before in texts and generator.random() < 0.2):
                break
            unread = [int(generator.choice(others))]
            before += TOKENS[unread[0]]


def test_where_the_text_is_forced_its_usual_tokens_are_allowed() -> None:
    """The tokenizer here writes single bytes; all other tokens of the same text are masked."""
    lark, texts = LANGUAGES[2]
    made = matcher_of(lark.partition("\n")[2])
    assert ids_of(masks_of(made, []).bits[0]) == {ord("{")} < allowed(texts, b"")


@pytest.mark.parametrize(("lark", "texts"), LANGUAGES)
def test_masks_behind_drafts_are_those_of_their_paths(lark: str, texts: set[bytes]) -> None:
    """Random trees, with right, wrong and end tokens; afterwards the matcher is as before."""
    generator = np.random.default_rng(1)
    made = matcher_of(lark)
    root = allowed(texts, b"")
    for _ in range(60):
        token_ids, parents, path = list[int](), list[int](), list[int]()
        texts_before = list[bytes | None]()
        for node in range(int(generator.integers(1, 12))):
            del path[int(generator.integers(0, len(path) + 1)) :]
            parent = path[-1] if path else -1
            before = texts_before[parent] if parent >= 0 else b""
            choices = sorted(allowed(texts, before)) if before is not None else []
            is_wrong = not choices or generator.random() < 0.3
            token_id = int(
                generator.integers(0, len(TOKENS)) if is_wrong else generator.choice(choices)
            )
            is_allowed = before is not None and token_id in allowed(texts, before)
            token_ids.append(token_id)
            parents.append(parent)
            is_end = token_id in EOS
            text = before + TOKENS[token_id] if before is not None else b""
            texts_before.append(text if is_allowed and not is_end else None)
            path.append(node)
        masks = masks_of(made, [], Draft(token_ids, parents))
        assert ids_of(masks.bits[0]) == root
        for node, text_before in enumerate(texts_before):
            if text_before is not None:
                assert ids_of(masks.bits[node + 1]) == allowed(texts, text_before)
            else:
                assert ids_of(masks.bits[node + 1]), "a row that is not reached has a token, too"


def test_end_tokens_wait_for_min_tokens_unless_the_text_is_complete() -> None:
    lark = 'start: "a"{0,2}'
    for changes in ({"min_tokens": 5}, {"ignores_eos": True}):
        made = matcher_of(lark)
        assert ids_of(masks_of(made, [], **changes).bits[0]) == {97}
        assert ids_of(masks_of(made, [97], **changes).bits[0]) == {97}
        assert ids_of(masks_of(made, [97], **changes).bits[0]) == set(EOS)
    made = matcher_of(lark)
    chain = Draft([97, 97], [-1, 0])
    late = masks_of(made, [], chain, num_generated=4, min_tokens=5)
    assert [ids_of(bits) for bits in late.bits] == [{97}, {97, *EOS}, set(EOS)]


def test_a_text_that_cannot_continue_is_an_error_of_its_row() -> None:
    made = matcher_of('start: "a" end\nend: /[^\\s\\S]/')
    failed = masks_of(made, [97] if not masks_of(made, []).error else [])
    assert failed.error_code is RowErrorCode.NO_ALLOWED_TOKEN
    assert "no token" in failed.error
    assert ids_of(failed.bits[0]) == set(EOS), "sampling of other rows continues"


def test_a_token_that_the_grammar_forbids_is_an_error_of_its_row() -> None:
    failed = masks_of(matcher_of('start: "ab"'), [99])
    assert failed.error_code is RowErrorCode.NO_ALLOWED_TOKEN


def test_a_grammar_with_too_many_alternatives_exceeds_a_limit() -> None:
    for count, error in ((8000, ""), (9000, "its parser exceeded a limit")):
        rules = "\n".join(f'r{index}: "{index:04}" "b"' for index in range(count))
        lark = f"start: {' | '.join(f'r{index}' for index in range(count))}\n{rules}"
        made = LLMatcher(byte_tokenizer(), lark, log_level=0, limits=parser_limits())
        masks = masks_of(made, [ord("0")] if not masks_of(made, []).error else [])
        assert masks.error.endswith(error)
        assert bool(masks.error) is bool(error)
        assert masks.error_code is (RowErrorCode.GRAMMAR_LIMIT if error else RowErrorCode.UNKNOWN)


@pytest.mark.parametrize(("text", "is_error"), [("", False), ("a", False), ("b", True)])
def test_a_forced_text_that_is_too_long_exceeds_a_limit(text: str, is_error: bool) -> None:
    lark = f'start: "a" "c"{{9}} | "b" /c{{{MAX_FORCED_TOKENS + 1}}}/'
    failed = masks_of(matcher_of(lark), list(text.encode()))
    assert bool(failed.error) is failed.is_certain is is_error
    assert not is_error or failed.error_code is RowErrorCode.GRAMMAR_LIMIT
    assert not is_error or f"more than {MAX_FORCED_TOKENS} tokens" in failed.error


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 300])
def test_masked_logits_are_those_of_brute_force(vocab_size: int) -> None:
    """In torch; the kernels have the same test beside them."""

    def mask(logits: torch.Tensor, rows: Any, bits: Any) -> None:
        mask_logits(logits, torch.from_numpy(rows), torch.from_numpy(bits))

    assert num_words(vocab_size) == mask_of([0], vocab_size).size
    cases.check_masks(mask, vocab_size)
