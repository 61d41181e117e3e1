"""Tokenizers: text to token ids and back, with what the gateway needs to know of them."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import tokenizers

from taco_gateway.text.tokenizer.detokenizer import (
    ByteDetokenizer,
    Detokenizer,
    StreamDetokenizer,
    WindowDetokenizer,
)
from taco_gateway.text.tokenizer.length_bound import max_bytes_per_token
from taco_gateway.text.tokenizer.plain_text import PlainTextEncoder
from taco_gateway.text.tokenizer.token_bytes import TokenBytes, byte_spelling
from taco_gateway.text.tokenizer.tokenizer_error import panics_as_errors

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSettings:
    """Settings of tokenizer_config.json besides the tokenizer itself.

    Attributes:
        bos_token, eos_token: their text; None: the model has no such token.
        chat_template: Jinja source of the checkpoint; None: it has no template.
        tool_template: the one for conversations with tools, if the checkpoint has its own for them.
        response_template: Hugging Face's description of the answers; None: it has none.
    """

    bos_token: str | None = None
    eos_token: str | None = None
    chat_template: str | None = None
    tool_template: str | None = None
    response_template: Mapping[str, Any] | None = None


_LONG_DECODE = 4096  # tokens


class Tokenizer(ABC):
    """A tokenizer with its special tokens and settings. It may be used from several threads.

    Attributes:
        settings: BOS, EOS and the chat template.
        special_tokens: ids, by text, of the tokens that `skip_special_tokens` removes.
        added_tokens: ids, by text, of all tokens that are recognized as a whole.
        vocab_size: number of tokens, added ones included.
    """

    settings: TokenizerSettings
    special_tokens: dict[str, int]
    added_tokens: dict[str, int]
    vocab_size: int

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of `special_tokens`."""
        return frozenset(self.special_tokens.values())

    @abstractmethod
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, in which special tokens are recognized."""

    @abstractmethod
    def encode_parts(self, parts: Sequence[str | int]) -> list[int]:
        """Token ids of plain text with special tokens, which are given by id.

        Special tokens in the strings are not recognized. No BOS is added.
        """

    def min_num_tokens(self, text: str) -> int:
        """A lower bound on the number of tokens of `text`, without encoding it; 0: unknown."""
        return 0

    @abstractmethod
    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """The text of `token_ids`; ids outside the vocabulary have no text."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token, also of a special token; may be part of a character."""
        return self.decode([token_id], skip_special_tokens=False).encode()

    @abstractmethod
    def detokenizer(
        self,
        prompt_token_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> Detokenizer:
        """A new detokenizer of a sequence that continues the prompt."""

    def close(self) -> None:  # noqa: B027 (most tokenizers have nothing to close)
        """Ends the child processes, if there are any."""

    def prefix_token_ids(self) -> list[int]:
        """The tokens that the tokenizer puts in front of a text (BOS)."""
        plain = self.encode("a", add_special_tokens=False)
        marked = self.encode("a", add_special_tokens=True)
        for start in range(len(marked) - len(plain) + 1):
            if marked[start : start + len(plain)] == plain:
                return marked[:start]
        return []


class FastTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library, as tokenizer.json describes it."""

    def __init__(
        self, backend: tokenizers.Tokenizer, settings: TokenizerSettings | None = None
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.settings = settings or TokenizerSettings()
        self._backend = backend
        self._plain_text = PlainTextEncoder(backend)
        added = backend.get_added_tokens_decoder()
        self.special_tokens = {token.content: i for i, token in added.items() if token.special}
        self.added_tokens = {token.content: i for i, token in added.items()}
        self.vocab_size = backend.get_vocab_size()
        decoder = backend.decoder
        spelling = byte_spelling(None if decoder is None else json.loads(decoder.__getstate__()))
        self._spelling = spelling
        if spelling is not None:
            self._bytes = TokenBytes(backend.id_to_token, spelling.spell)
            self._shown_bytes = TokenBytes(backend.id_to_token, spelling.spell, self.special_ids)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        # A batch of one: `encode` would hold the interpreter lock, for seconds on a megabyte.
        with panics_as_errors():
            (encoding,) = self._backend.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens
            )
        return encoding.ids

    def encode_parts(self, parts: Sequence[str | int]) -> list[int]:
        with panics_as_errors():
            return self._plain_text.encode(parts)

    def min_num_tokens(self, text: str) -> int:
        longest = self._max_bytes_per_token
        return 0 if longest is None else -(-len(text.encode()) // longest)

    @cached_property
    def _max_bytes_per_token(self) -> int | None:
        return max_bytes_per_token(self._backend)

    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        with panics_as_errors():
            if len(token_ids) < _LONG_DECODE:
                return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
            # A batch of one: `decode` would hold the interpreter lock.
            (text,) = self._backend.decode_batch(
                [token_ids], skip_special_tokens=skip_special_tokens
            )
            return text

    def token_bytes(self, token_id: int) -> bytes:
        return super().token_bytes(token_id) if self._spelling is None else self._bytes[token_id]

    def detokenizer(
        self,
        prompt_token_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> Detokenizer:
        if self._spelling is not None:
            return ByteDetokenizer(
                self._shown_bytes if skip_special_tokens else self._bytes,
                prompt_token_ids,
                strips_space=self._spelling.strips_space,
                per_byte=self._spelling.per_byte,
            )
        return StreamDetokenizer(
            self._backend,
            lambda ids: self.decode(ids, skip_special_tokens=False),
            prompt_token_ids,
            self.special_ids if skip_special_tokens else (),
        )


class SlowTokenizer(Tokenizer):
    """A tokenizer that transformers runs in Python, which the `tokenizers` library lacks."""

    def __init__(
        self, backend: "PreTrainedTokenizerBase", settings: TokenizerSettings | None = None
    ) -> None:
        self.settings = settings or TokenizerSettings()
        self._backend = backend
        self.special_tokens = dict(
            zip(backend.all_special_tokens, backend.all_special_ids, strict=True)
        )
        self.added_tokens = dict(backend.get_added_vocab())
        self.vocab_size = len(backend)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self._backend.encode(text, add_special_tokens=add_special_tokens)

    def encode_parts(self, parts: Sequence[str | int]) -> list[int]:
        token_ids: list[int] = []
        for part in parts:
            if isinstance(part, int):
                token_ids.append(part)
            else:
                token_ids += self._backend.encode(
                    part, add_special_tokens=False, split_special_tokens=True
                )
        return token_ids

    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        text = self._backend.decode(
            [i for i in token_ids if i < self.vocab_size],
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
        )
        assert isinstance(text, str)  # a list only for a list of sequences
        return text

    def detokenizer(
        self,
        prompt_token_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> Detokenizer:
        return WindowDetokenizer(
            lambda ids: self.decode(
                ids,
                skip_special_tokens=skip_special_tokens,
                spaces_between_special_tokens=spaces_between_special_tokens,
            ),
            prompt_token_ids,
            self.special_ids if skip_special_tokens else (),
        )
