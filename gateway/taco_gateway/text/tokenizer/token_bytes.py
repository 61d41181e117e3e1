"""The bytes of each token.

A token may hold part of a character, so texts of tokens cannot be joined, but bytes can. Two
families of decoders map every token to bytes independently of its neighbours: byte-level BPE
(GPT-2, Llama 3, Qwen) and SentencePiece with byte fallback (Llama 2, Mistral, Gemma). The rules are
those of `tokenizers` (`decoders/byte_level.rs`, `byte_fallback.rs`, `strip.rs`).
"""

import re
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from taco_common.tokenizer_files.byte_level import BYTE_LEVEL_ALPHABET

BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class ByteSpelling:
    """How a decoder maps tokens to bytes.

    Attributes:
        spell: maps a token of the vocabulary to its bytes.
        strips_space: one space at the beginning of a text is removed.
        per_byte: malformed UTF-8 gives one U+FFFD per byte, not one per malformed piece.
    """

    spell: Callable[[str], bytes]
    strips_space: bool = False
    per_byte: bool = False


class TokenBytes(dict[int, bytes]):
    """The bytes of each token id, computed at the first use; empty outside the vocabulary.

    Args:
        hidden: ids without bytes.
    """

    def __init__(
        self,
        token_of_id: Callable[[int], str | None],
        spell: Callable[[str], bytes],
        hidden: Container[int] = (),
    ) -> None:
        super().__init__()
        self._token_of_id = token_of_id
        self._spell = spell
        self._hidden = hidden

    def __missing__(self, token_id: int) -> bytes:
        token = None if token_id in self._hidden else self._token_of_id(token_id)
        spelled = b"" if token is None else self._spell(token)
        self[token_id] = spelled
        return spelled


def byte_spelling(decoder: dict[str, Any] | None) -> ByteSpelling | None:
    """The mapping of a decoder of tokenizer.json; None: it belongs to neither family."""
    if decoder is None:
        return None
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    names = [step["type"] for step in steps if step["type"] != "Fuse"]
    if names == ["ByteLevel"]:
        return ByteSpelling(_spell_byte_level)
    return _sentencepiece_spelling(steps)


def _spell_byte_level(token: str) -> bytes:
    try:
        return bytes([BYTE_LEVEL_ALPHABET[char] for char in token])
    except KeyError:  # an added token outside the alphabet is plain text
        return token.encode()


def _sentencepiece_spelling(steps: list[dict[str, Any]]) -> ByteSpelling | None:
    replacements: list[tuple[str, str]] = []
    byte_fallback = fused = strips_space = False
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": old}, "content": new} if not fused:
                replacements.append((old, new))
            case {"type": "ByteFallback"} if not fused:
                byte_fallback = True
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0} if fused:
                strips_space = True
            case _:
                return None
    if not replacements:
        return None

    def spell(token: str) -> bytes:
        for old, new in replacements:
            token = token.replace(old, new)
        if byte_fallback and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        return token.encode()

    return ByteSpelling(spell, strips_space=strips_space, per_byte=True)
