"""llama.cpp's byte-pair encoding in Python: the oracle of byte-level vocabularies in GGUF files.

The patterns are those that `llama-vocab.cpp` has, or that it names as the original. They run in the
package `regex`, not in the library that `tokenizers` uses. Falcon's are not here: its
tokenizer.json cuts at digits after letters have become bytes, some of which look like fractions.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import regex

from taco_common.tokenizer_files.byte_level import BYTE_LEVEL_ALPHABET

_ENDINGS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_UP, _LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _like_cl100k(numbers: str) -> str:
    return (
        rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
    )


def _like_o200k(numbers: str, endings: str = _ENDINGS + "?") -> str:
    start = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{start}{_UP}*{_LOW}+{endings}|{start}{_UP}+{_LOW}*{endings}"
        rf"|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
    )


_DEEPSEEK_3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _TAIL,
)
# Kimi's original, whose classes leave out Chinese characters by a set operation.
_KIMI = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?(?:(?!\p{{Han}}){_UP})*(?:(?!\p{{Han}}){_LOW})+{_ENDINGS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?(?:(?!\p{{Han}}){_UP})+(?:(?!\p{{Han}}){_LOW})*{_ENDINGS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
)
# The published list of letters has fewer of them: no Armenian, no Georgian ones.
_CASED = r"[\p{Lu}\p{Ll}\p{Lt}]"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
PATTERNS: Mapping[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "olmo": (_GPT2,),
    "starcoder": (r"\p{N}", _GPT2),
    "command-r": (r"\p{N}", _GPT2),
    "smollm": (r"\p{N}", _GPT2),
    "qwen2": (_like_cl100k(r"\p{N}"),),
    "qwen35": (
        rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}",
    ),
    "stablelm2": (_like_cl100k(r"\p{N}"),),
    "llama-bpe": (_like_cl100k(r"\p{N}{1,3}"),),
    "glm4": (_like_cl100k(r"\p{N}{1,3}"),),
    "smaug-bpe": (_like_cl100k(r"\p{N}{1,3}"),),
    "tekken": (_like_o200k(r"\p{N}", ""),),
    "gpt-4o": (_like_o200k(r"\p{N}{1,3}"),),
    "tiny_aya": (r"\d{1,3}(?=(?:\d{3})*\b)", _like_o200k(r"\p{N}{1,3}")),
    "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "youtu": (
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-\u303f︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+",
        _like_o200k(r"\p{N}"),
    ),
    "kimi-k2": (_KIMI,),
    "deepseek-v3": _DEEPSEEK_3,
    "deepseek-llm": (
        r"[\r\n]",
        rf"\s?{_CASED}+",
        "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
        r"\s+$",
        "[一-龥ࠀ-一가-\ud7ff]+",
        r"\p{N}",
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"),
    "bloom": (_BLOOM,),
    "viking": (_BLOOM, r"\p{N}"),
    "seed-coder": (
        rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_TAIL}",
    ),
    "minicpm5": (r"\p{N}{1,3}", _like_cl100k(r"\p{N}+")),
}
# Texts of these tokenizers are composed first, which llama.cpp leaves out.
COMPOSED = ("qwen2", "qwen35", "olmo", "command-r")
IGNORE_MERGES = ("llama-bpe", "glm4", "tekken", "kimi-k2", "youtu", "minicpm5")


@dataclass(frozen=True)
class GgmlTokenizer:
    """The keys `tokenizer.ggml.*` of a file, without the prefix."""

    metadata: Mapping[str, object]
    pre: str

    @cached_property
    def _ids(self) -> dict[str, int]:
        tokens = self.metadata["tokens"]
        assert isinstance(tokens, list)
        return {token: i for i, token in enumerate(tokens)}

    @cached_property
    def _ranks(self) -> dict[tuple[str, str], int]:
        merges = self.metadata["merges"]
        assert isinstance(merges, list)
        pairs = [text[:1] + text[1:].replace(" ", "\0", 1) for text in merges]
        split = [pair.partition("\0") for pair in pairs]
        return {(left, right): rank for rank, (left, _, right) in enumerate(split)}

    @cached_property
    def _special(self) -> list[str]:
        tokens, types = self.metadata["tokens"], self.metadata["token_type"]
        assert isinstance(tokens, list)
        assert isinstance(types, list)
        found = [token for token, kind in zip(tokens, types, strict=True) if kind in (2, 3, 4)]
        return sorted(found, key=len, reverse=True)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without tokens around it."""
        if self._special:
            pattern = "(" + "|".join(map(regex.escape, self._special)) + ")"
            parts = regex.split(pattern, text)
        else:
            parts = [text]
        ids: list[int] = []
        for i, part in enumerate(parts):
            ids += [self._ids[part]] if i % 2 else self._encode_text(part)
        return ids

    def _encode_text(self, text: str) -> list[int]:
        if self.pre in COMPOSED:
            text = unicodedata.normalize("NFC", text)
        return [i for word in words(text, PATTERNS[self.pre]) for i in self._encode_word(word)]

    def _encode_word(self, word: str) -> list[int]:
        symbols = [_SYMBOLS[byte] for byte in word.encode()]
        if self.pre in IGNORE_MERGES and "".join(symbols) in self._ids:
            return [self._ids["".join(symbols)]]
        while True:
            pairs = list(pairwise(symbols))
            ranks = [self._ranks.get(pair, len(self._ranks)) for pair in pairs]
            if not ranks or min(ranks) == len(self._ranks):
                return [self._ids[symbol] for symbol in symbols]
            at = ranks.index(min(ranks))
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


_SYMBOLS = {byte: symbol for symbol, byte in BYTE_LEVEL_ALPHABET.items()}


def words(text: str, patterns: tuple[str, ...]) -> Iterator[str]:
    """The text cut by one pattern after another: matches, and what is between them."""
    pieces = [text]
    for pattern in patterns:
        pieces = [part for piece in pieces for part in _cut(piece, pattern)]
    yield from pieces


def _cut(piece: str, pattern: str) -> Iterator[str]:
    ends = sorted(
        {0, len(piece), *(at for one in regex.finditer(pattern, piece) for at in one.span())}
    )
    for start, end in pairwise(ends):
        yield piece[start:end]
