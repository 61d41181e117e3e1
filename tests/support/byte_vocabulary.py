"""A small vocabulary whose tokens are known bytes, for tests of masks by brute force."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from taco_worker.sampling.token_masks import mask_of

# Single bytes, and tokens of several: some cross the ends of words, of JSON's values or of
# characters.
_EXTRA = [b"ab", b"ba", b"a}", b'"a', b'":', b"true", b", ", b"\n\n", b"{}", b'{"', b"bc"]
_EXTRA += [b'","', b'"}', b'":"', b'":[', b"],", b"12", b"0,", b"alse", b"nul", "é".encode()]
_EXTRA += [b"\xa9", b"\xc3", "日本".encode(), b"\xe6\x97", b'\\"', b"\\u00"]
EOS = (256, 257)
_NAMES = dict.fromkeys(_EXTRA)  # no token twice
TOKENS: list[bytes] = [bytes([byte]) for byte in range(256)]
TOKENS += [b"\xff<eos>", b"\xff<eot>", *(token for token in _NAMES if len(token) > 1)]
VOCAB_SIZE = 320  # the model's logits are wider than the vocabulary
EOS_MASK = mask_of(list(EOS), VOCAB_SIZE)


class _Vocabulary:
    tokens = TOKENS
    special_token_ids = list(EOS)  # noqa: RUF012
    bos_token_id = None
    eos_token_id = EOS[0]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def byte_tokenizer() -> LLTokenizer:
    """Writes every text in single bytes."""
    return LLTokenizer(TokenizerWrapper(_Vocabulary()), eos_token=list(EOS))


def matcher_of(grammar: str) -> LLMatcher:
    made = LLMatcher(byte_tokenizer(), grammar, log_level=0)
    assert not made.is_error(), made.get_error()
    return made


def ids_of(bits: Any) -> set[int]:
    """The tokens of a mask, int32 [num_words]."""
    return set(np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist())
