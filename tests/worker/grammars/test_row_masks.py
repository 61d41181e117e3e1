"""Masks equal brute force over a small vocabulary, also behind drafts."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from taco_proto.steps import RowErrorCode
from taco_worker.grammars.row_masks import Draft, RowMasks
from taco_worker.sampling.token_masks import mask_logits, mask_of, num_words

# Single bytes, and tokens of several: some cross the ends of words.
EXTRA = [b"ab", b"ba", b"a}", b'"a', b'":', b"true", b", ", b"\n\n", b"{}", b'{"', b"bc"]
BYTES = [bytes([byte]) for byte in range(256)]
EOS = (256, 257)
TOKENS = [*BYTES, b"\xff<eos>", b"\xff<eot>", *EXTRA]
VOCAB_SIZE = 300  # the model's logits are wider than the vocabulary
EOS_MASK = mask_of(list(EOS), VOCAB_SIZE)


class Vocabulary:
    tokens = TOKENS
    special_token_ids = list(EOS)  # noqa: RUF012
    bos_token_id = None
    eos_token_id = EOS[0]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(Vocabulary()), eos_token=list(EOS))


def matcher(tokenizer: LLTokenizer, lark: str) -> LLMatcher:
    made = LLMatcher(tokenizer, lark, log_level=0)
    assert not made.is_error(), made.get_error()
    return made


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


def ids_of(bits: Any) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist())


def masks_of(made: LLMatcher, unread: list[int], draft: Draft | None = None, **changes: Any) -> Any:
    settings: dict[str, Any] = {"num_generated": 0, "min_tokens": 0, "ignores_eos": False}
    return RowMasks.of(made, unread, draft or Draft([], []), EOS_MASK, **settings | changes)


@pytest.mark.parametrize(("lark", "texts"), LANGUAGES)
def test_masks_are_those_of_brute_force(
    tokenizer: LLTokenizer, lark: str, texts: set[bytes]
) -> None:
    """On random walks, with each step's token read one call later, as in the worker."""
    generator = np.random.default_rng(0)
    for _ in range(60):
        made, before, unread = matcher(tokenizer, lark), b"", list[int]()
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


def test_where_the_text_is_forced_its_usual_tokens_are_allowed(tokenizer: LLTokenizer) -> None:
    """The tokenizer here writes single bytes; all other tokens of the same text are masked."""
    lark, texts = LANGUAGES[2]
    made = matcher(tokenizer, lark.partition("\n")[2])
    assert ids_of(masks_of(made, []).bits[0]) == {ord("{")} < allowed(texts, b"")


@pytest.mark.parametrize(("lark", "texts"), LANGUAGES)
def test_masks_behind_drafts_are_those_of_their_paths(
    tokenizer: LLTokenizer, lark: str, texts: set[bytes]
) -> None:
    """Random trees, with right, wrong and end tokens; afterwards the matcher is as before."""
    generator = np.random.default_rng(1)
    made = matcher(tokenizer, lark)
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
            token_id = int(generator.integers(0, 268) if is_wrong else generator.choice(choices))
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


def test_end_tokens_wait_for_min_tokens_unless_the_text_is_complete(
    tokenizer: LLTokenizer,
) -> None:
    lark = 'start: "a"{0,2}'
    for changes in ({"min_tokens": 5}, {"ignores_eos": True}):
        made = matcher(tokenizer, lark)
        assert ids_of(masks_of(made, [], **changes).bits[0]) == {97}
        assert ids_of(masks_of(made, [97], **changes).bits[0]) == {97}
        assert ids_of(masks_of(made, [97], **changes).bits[0]) == set(EOS)
    made = matcher(tokenizer, lark)
    chain = Draft([97, 97], [-1, 0])
    late = masks_of(made, [], chain, num_generated=4, min_tokens=5)
    assert [ids_of(bits) for bits in late.bits] == [{97}, {97, *EOS}, set(EOS)]


def test_a_text_that_cannot_continue_is_an_error_of_its_row(tokenizer: LLTokenizer) -> None:
    made = matcher(tokenizer, 'start: "a" end\nend: /[^\\s\\S]/')
    failed = masks_of(made, [97] if not masks_of(made, []).error else [])
    assert failed.error_code is RowErrorCode.NO_ALLOWED_TOKEN
    assert "no token" in failed.error
    assert ids_of(failed.bits[0]) == set(EOS), "sampling of other rows continues"


def test_a_token_that_the_grammar_forbids_is_an_error_of_its_row(tokenizer: LLTokenizer) -> None:
    failed = masks_of(matcher(tokenizer, 'start: "ab"'), [99])
    assert failed.error_code is RowErrorCode.NO_ALLOWED_TOKEN


def test_masked_logits_are_those_of_brute_force() -> None:
    generator = np.random.default_rng(2)
    for vocab_size in (1, 31, 32, 33, 300):
        is_allowed = generator.random((3, vocab_size)) < 0.5
        bits = np.stack([mask_of(np.flatnonzero(row).tolist(), vocab_size) for row in is_allowed])
        assert bits.shape == (3, num_words(vocab_size))
        for rows in ([0, 1, 2], [1, 3, 4]):
            logits = torch.from_numpy(generator.random((rows[-1] + 1, vocab_size), np.float32))
            expected = logits.clone()
            for row, keeps in zip(rows, is_allowed, strict=True):
                expected[row, torch.from_numpy(~keeps)] = -math.inf
            mask_logits(logits, torch.tensor(rows), torch.from_numpy(bits))
            assert torch.equal(logits, expected)
