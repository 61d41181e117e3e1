"""Incremental detokenization: token ids of a growing sequence to pieces of text.

A piece never ends within a character: bytes of an unfinished character wait for the next tokens.
All pieces and the rest that `flush` returns equal the text of decoding all tokens at once.

There are three classes. `ByteDetokenizer` serves byte-level BPE and SentencePiece with byte
fallback, that is nearly all models: `DecodeStream` takes 2 to 3 times as long there, and with
byte fallback it raises "Invalid prefix" on half of random token sequences (tokenizers 0.23).
`StreamDetokenizer` serves all other tokenizers of that library. `WindowDetokenizer` serves
tokenizers that transformers runs in Python.
"""

import codecs
import re
from collections.abc import Callable, Container, Sequence
from itertools import islice
from typing import Protocol

import tokenizers
from tokenizers.decoders import DecodeStream

from taco_gateway.text.tokenizer.token_bytes import TokenBytes
from taco_gateway.text.tokenizer.tokenizer_error import panics_as_errors

REPLACEMENT = "\ufffd"
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
# Number of tokens before a piece that decide its spelling (spaces between words, clean-ups).
_WINDOW = 6
# A character has at most four bytes; more tokens do not wait for its end.
_MAX_UNFINISHED = 4


class Detokenizer(Protocol):
    """Turns the tokens of one sequence into text, front to back."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """Text that these tokens complete."""

    def flush(self) -> str:
        """Text of an unfinished character at the end: U+FFFD, or nothing."""


class ByteDetokenizer:
    """Detokenizer for tokenizers whose tokens are bytes: a look-up per token and an incremental
    UTF-8 decoder.

    Where SentencePiece's bytes are malformed, whole characters before them stay. `tokenizers` gives
    up all bytes up to the next token that is not a byte, but streamed text cannot be taken back.

    Args:
        table: the bytes of each token.
        prompt_token_ids: the tokens before the sequence; their text is not repeated.
        strips_space: leave out one space at the beginning of the text.
        per_byte: malformed UTF-8 gives one U+FFFD per byte.
    """

    def __init__(
        self,
        table: TokenBytes,
        prompt_token_ids: Sequence[int] = (),
        *,
        strips_space: bool = False,
        per_byte: bool = False,
    ) -> None:
        self._table = table
        self._per_byte = per_byte
        self._decode = codecs.getincrementaldecoder("utf-8")(
            "surrogateescape" if per_byte else "replace"
        ).decode
        self._at_start = strips_space and not any(table[i] for i in prompt_token_ids)
        # A prompt of token ids may end within a character.
        self._decode(b"".join([table[i] for i in prompt_token_ids[-_MAX_UNFINISHED:]]))

    def feed(self, token_ids: Sequence[int]) -> str:
        table = self._table
        if len(token_ids) == 1:
            text = self._decode(table[token_ids[0]])
        else:
            text = self._decode(b"".join([table[i] for i in token_ids]))
        return self._tidied(text) if self._per_byte or self._at_start else text

    def flush(self) -> str:
        return self._tidied(self._decode(b"", True))

    def _tidied(self, text: str) -> str:
        if self._at_start and text:
            self._at_start = False
            text = text.removeprefix(" ")
        if self._per_byte and not text.isascii():
            text = _ESCAPED_BYTE.sub(REPLACEMENT, text)
        return text


class StreamDetokenizer:
    """Detokenizer for every other tokenizer of the `tokenizers` library: its `DecodeStream`.

    `DecodeStream` keeps text back for as long as it ends with U+FFFD, has no flush, and raises when
    a decoder changes text that it has given already. These cases decode a window of tokens instead.

    Args:
        backend: the tokenizer.
        decode: token ids to text, without the hidden tokens.
        prompt_token_ids: the tokens before the sequence; their text is not repeated.
        hidden: tokens without text.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        decode: Callable[[Sequence[int]], str],
        prompt_token_ids: Sequence[int] = (),
        hidden: Container[int] = (),
    ) -> None:
        self._backend = backend
        self._decode = decode
        self._hidden = hidden
        self._shown = _last_shown(prompt_token_ids, hidden)
        self._pending: list[int] = []  # tokens whose text has not been given yet
        self._stream = DecodeStream(ids=self._shown)

    def feed(self, token_ids: Sequence[int]) -> str:
        with panics_as_errors():
            return "".join([self._feed_one(i) for i in token_ids if i not in self._hidden])

    def flush(self) -> str:
        if not self._pending:
            return ""
        known, whole = self._decode(self._shown), self._decode(self._shown + self._pending)
        self._show()
        return whole[len(known) :]

    def _feed_one(self, token_id: int) -> str:
        self._pending.append(token_id)
        try:
            text = self._stream.step(self._backend, token_id)
        except Exception:  # "Invalid prefix": the decoder changed earlier text
            return self._restart()
        if text is not None:
            self._show()
            return text
        return self._restart() if len(self._pending) > _MAX_UNFINISHED else ""

    def _restart(self) -> str:
        text = self.flush()
        self._stream = DecodeStream(ids=self._shown)
        return text

    def _show(self) -> None:
        self._shown = [*self._shown, *self._pending][-_WINDOW:]
        self._pending = []


class WindowDetokenizer:
    """Detokenizer for tokenizers that run in Python, which `DecodeStream` does not take.

    It decodes a window of the last tokens with and without the new ones; the difference is the new
    text (the method of Hugging Face's text-generation-inference).

    Args:
        decode: token ids to text.
        prompt_token_ids: the tokens before the sequence; their text is not repeated.
        hidden: tokens without text; they would fill the window.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        prompt_token_ids: Sequence[int] = (),
        hidden: Container[int] = (),
    ) -> None:
        self._decode = decode
        self._hidden = hidden
        self._window = _last_shown(prompt_token_ids, hidden)
        self._num_shown = len(self._window)

    def feed(self, token_ids: Sequence[int]) -> str:
        return "".join([self._feed_one(i) for i in token_ids if i not in self._hidden])

    def flush(self) -> str:
        return self._show(self._window)

    def _feed_one(self, token_id: int) -> str:
        self._window.append(token_id)
        num_waiting = len(self._window) - self._num_shown
        if num_waiting <= _MAX_UNFINISHED and self._decode(self._window).endswith(REPLACEMENT):
            return ""
        return self._show(self._window)

    def _show(self, window: list[int]) -> str:
        shown, whole = self._decode(window[: self._num_shown]), self._decode(window)
        # The window keeps the tokens of this piece and of the piece before.
        self._window = window[max(0, self._num_shown - _WINDOW) :]
        self._num_shown = len(self._window)
        return whole[len(shown) :]


def _last_shown(token_ids: Sequence[int], hidden: Container[int]) -> list[int]:
    """The last tokens that have a text, at most `_WINDOW`."""
    shown = (i for i in reversed(token_ids) if i not in hidden)
    return list(islice(shown, _WINDOW))[::-1]
