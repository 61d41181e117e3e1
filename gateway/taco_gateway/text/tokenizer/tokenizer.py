"""Text to token ids and back."""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

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
    """What tokenizer_config.json says beside the tokenizer itself.

    Attributes:
        bos_token, eos_token: their text; None where the model has none.
        chat_template: the checkpoint's own Jinja source; None if it has none.
    """

    bos_token: str | None = None
    eos_token: str | None = None
    chat_template: str | None = None


_LONG_DECODE = 4096  # tokens


class Tokenizer(ABC):
    """A tokenizer and what the gateway must know of it. Safe to use from several threads.

    Attributes:
        settings: BOS, EOS and the chat template.
        special_tokens: ids by text of the tokens that `skip_special_tokens` leaves out.
        vocab_size: number of tokens, added ones included.
    """

    settings: TokenizerSettings
    special_tokens: dict[str, int]
    vocab_size: int

    @abstractmethod
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; special tokens that it spells count as such."""

    @abstractmethod
    def encode_parts(self, parts: Sequence[str | int]) -> list[int]:
        """Token ids of a text with special tokens (given by id) in it.

        Strings are plain text, even where they spell a special token. Nothing is added in front.
        """

    def min_num_tokens(self, text: str) -> int:
        """A number of tokens that `text` is sure to have, without encoding it; 0 if nothing is."""
        return 0

    @abstractmethod
    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """The text of `token_ids`; ids outside the vocabulary have none."""

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """What one token spells, special tokens included; may be part of a character."""

    @abstractmethod
    def detokenizer(
        self,
        prompt_token_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> Detokenizer:
        """Spells a sequence that goes on from the prompt, piece by piece."""

    def close(self) -> None:  # noqa: B027 (most tokenizers have nothing to close)
        """End the processes that it runs in, if there are any."""

    def prefix_token_ids(self) -> list[int]:
        """What the tokenizer itself puts in front of a text (BOS)."""
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
        self._special_ids = frozenset(self.special_tokens.values())
        self.vocab_size = backend.get_vocab_size()
        decoder = backend.decoder
        spelling = byte_spelling(None if decoder is None else json.loads(decoder.__getstate__()))
        self._spelling = spelling
        if spelling is not None:
            self._bytes = TokenBytes(backend.id_to_token, spelling.spell)
            self._shown_bytes = TokenBytes(backend.id_to_token, spelling.spell, self._special_ids)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        # A batch of one: plain `encode` holds the interpreter's lock, on a megabyte for seconds.
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
            # A batch of one: plain `decode` holds the interpreter's lock all the while.
            (text,) = self._backend.decode_batch(
                [token_ids], skip_special_tokens=skip_special_tokens
            )
            return text

    def token_bytes(self, token_id: int) -> bytes:
        if self._spelling is not None:
            return self._bytes[token_id]
        return self.decode([token_id], skip_special_tokens=False).encode()

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
            self._special_ids if skip_special_tokens else (),
        )


class SlowTokenizer(Tokenizer):
    """A tokenizer that transformers runs in Python: one that `tokenizers` has no form for."""

    def __init__(
        self, backend: "PreTrainedTokenizerBase", settings: TokenizerSettings | None = None
    ) -> None:
        self.settings = settings or TokenizerSettings()
        self._backend = backend
        self.special_tokens = dict(
            zip(backend.all_special_tokens, backend.all_special_ids, strict=True)
        )
        self._special_ids = frozenset(self.special_tokens.values())
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

    def token_bytes(self, token_id: int) -> bytes:
        return self.decode([token_id], skip_special_tokens=False).encode()

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
            self._special_ids if skip_special_tokens else (),
        )
