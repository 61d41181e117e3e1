"""Token ids to text, piece by piece.

A piece never ends within a character: bytes of an unfinished one wait for the next tokens. All
pieces and the rest that `flush` gives make up the text that decoding all tokens at once would give.
"""

import codecs
import re
from collections.abc import Callable, Container, Sequence
from itertools import islice
from typing import Protocol

from taco_gateway.text.tokenizer.token_bytes import TokenBytes

REPLACEMENT = "\ufffd"
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
# So many tokens before a piece decide how it is spelled (spaces between words, clean-ups).
_WINDOW = 6
# A character has at most four bytes; more tokens than that do not wait for its end.
_MAX_UNFINISHED = 4


class Detokenizer(Protocol):
    """Spells one sequence, front to back."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete."""

    def flush(self) -> str:
        """What an unfinished character at the end is worth: U+FFFD, or nothing."""


class ByteDetokenizer:
    """For tokenizers whose tokens spell bytes: one look-up a token, and an incremental UTF-8
    decoder.

    Where SentencePiece's bytes are malformed, characters that were whole before stay (`tokenizers`
    gives up all bytes up to the next token that is not a byte; text that has been shown cannot be
    taken back).

    Args:
        table: the bytes of each token.
        prompt_token_ids: what the sequence goes on from; its text is not given again.
        strips_space: leave out one space at the beginning of the text.
        per_byte: malformed UTF-8 gives U+FFFD once a byte.
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


class WindowDetokenizer:
    """For every other tokenizer: decodes a window of the last tokens with and without the new ones;
    the difference is the new text (the method of Hugging Face's text-generation-inference).

    Args:
        decode: token ids to text.
        prompt_token_ids: what the sequence goes on from; its text is not given again.
        hidden: tokens without a text; they would fill the window.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        prompt_token_ids: Sequence[int] = (),
        hidden: Container[int] = (),
    ) -> None:
        self._decode = decode
        self._hidden = hidden
        shown = (i for i in reversed(prompt_token_ids) if i not in hidden)
        self._window = list(islice(shown, _WINDOW))[::-1]
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
        # The window keeps the tokens of this piece and of the one before.
        self._window = window[max(0, self._num_shown - _WINDOW) :]
        self._num_shown = len(self._window)
        return whole[len(shown) :]
