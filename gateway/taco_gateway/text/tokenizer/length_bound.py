"""Lower bound on the number of tokens of a text, from the longest text of one token.

A text of N bytes has at least N / (that length) tokens. So a prompt far beyond the context length
is rejected before tokenization, which would cost seconds and hundreds of bytes per token.
"""

import json
from typing import Any

import tokenizers
from tokenizers import models

from taco_common.tokenizer_files.byte_level import BYTE_LEVEL_ALPHABET
from taco_gateway.text.tokenizer.token_bytes import BYTE_TOKENS

# Composition divides the bytes by three at most: a Hangul syllable has 3 bytes and its letters have
# 9; the Kelvin sign of 3 bytes becomes a K.
_NFC_SHRINKAGE = 3
_LOSSLESS_SPLITTERS = frozenset({"ByteLevel", "Digits", "Metaspace"})


def max_bytes_per_token(backend: tokenizers.Tokenizer) -> int | None:
    """The largest number of UTF-8 bytes of text that become one token.

    None if there is no such bound: the tokenizer drops characters, or has one token for any unknown
    word. The bound exists for byte-pair encodings with a token for every byte.
    """
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added):  # they absorb the spaces beside them
        return None
    splitters = _steps(_state(backend.pre_tokenizer), "pretokenizers")
    shrinkage = _shrinkage(_steps(_state(backend.normalizer), "normalizers"))
    if shrinkage is None or not all(_is_lossless(step) for step in splitters):
        return None
    if not isinstance(backend.model, models.BPE):
        return None
    vocab = backend.get_vocab(with_added_tokens=False)
    longest = max([len(token.content.encode()) for token in added], default=1)
    if any(step["type"] == "ByteLevel" for step in splitters):
        if not BYTE_LEVEL_ALPHABET.keys() <= vocab.keys():
            return None
        return shrinkage * max(longest, *map(len, vocab))  # each character is one byte
    if not backend.model.byte_fallback or not vocab.keys() >= BYTE_TOKENS:
        return None
    return shrinkage * max([longest, *(len(token.encode()) for token in vocab)])


def _state(component: Any) -> dict[str, Any] | None:
    """A component of the tokenizer, in the form of tokenizer.json."""
    return None if component is None else json.loads(component.__getstate__())


def _steps(state: dict[str, Any] | None, parts: str) -> list[dict[str, Any]]:
    if state is None:
        return []
    if state["type"] != "Sequence":
        return [state]
    return [step for part in state[parts] for step in _steps(part, parts)]


def _shrinkage(normalizers: list[dict[str, Any]]) -> int | None:
    """The factor by which normalizers may reduce the bytes of a text; None: any factor."""
    shrinkage = 1
    for step in normalizers:
        match step:
            case {"type": "Prepend"}:
                pass
            case {"type": "Replace", "pattern": {"String": old}, "content": new} if len(
                old.encode()
            ) <= len(new.encode()):
                pass
            case {"type": "NFC"}:
                shrinkage *= _NFC_SHRINKAGE
            case _:
                return None
    return shrinkage


def _is_lossless(splitter: dict[str, Any]) -> bool:
    if splitter["type"] in ("Split", "Punctuation"):
        return splitter["behavior"] != "Removed"
    return splitter["type"] in _LOSSLESS_SPLITTERS
