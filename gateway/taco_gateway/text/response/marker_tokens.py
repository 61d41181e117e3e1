"""Marker tokens in the text of an answer.

A marker that is one token of the vocabulary counts only as that token, never as text that is
spelled like it. The parser sees such a token as one lone surrogate, a character that decoded text
cannot contain.
"""

import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping

_FIRST_SYMBOL = 0xD800
_LAST_SYMBOL = 0xDFFF
_MIN_CHARS = 3  # shorter added tokens are punctuation or spaces


class MarkerTokens:
    """The marker tokens of a format in one vocabulary.

    Args:
        added_tokens: ids of the vocabulary's added tokens, by text.
        hidden_ids: tokens without text in the answer.
        literals: the texts of the format.

    Attributes:
        by_id: symbol and text in the answer of each marker token.
        ids: id of each marker token, by its spelling.
    """

    def __init__(
        self,
        added_tokens: Mapping[str, int],
        hidden_ids: Collection[int],
        literals: Iterable[str],
    ) -> None:
        whole = "\n".join(literals)
        found = sorted(
            (text for text in added_tokens if _may_be_marker(text) and text in whole),
            key=len,
            reverse=True,
        )[: _LAST_SYMBOL - _FIRST_SYMBOL]
        self._symbols = {text: chr(_FIRST_SYMBOL + k) for k, text in enumerate(found)}
        self._pattern = re.compile("|".join(map(re.escape, found))) if found else None
        self._texts = {
            ord(symbol): "" if added_tokens[text] in hidden_ids else text
            for text, symbol in self._symbols.items()
        }
        self._spellings = {ord(symbol): text for text, symbol in self._symbols.items()}
        self.ids = {text: added_tokens[text] for text in found}
        self.by_id = {
            added_tokens[text]: (symbol, self._texts[ord(symbol)])
            for text, symbol in self._symbols.items()
        }

    def encoded(self, literal: str) -> str:
        """A text of the format with a symbol for each marker token."""
        if self._pattern is None:
            return literal
        return self._pattern.sub(lambda match: self._symbols[match[0]], literal)

    def decoded(self, text: str) -> str:
        """Text of the answer, with the texts of its marker tokens."""
        return text if text.isascii() else text.translate(self._texts)

    def spelled(self, text: str) -> str:
        """Text of the answer, with the spelling of each marker token, also of a hidden one."""
        return text if text.isascii() else text.translate(self._spellings)


def _may_be_marker(text: str) -> bool:
    return len(text) >= _MIN_CHARS and not any(char.isspace() for char in text)


class MarkedText:
    """Puts the symbols of marker tokens into text that may be released later than its tokens."""

    def __init__(self, markers: MarkerTokens) -> None:
        self._by_id = markers.by_id
        self._waiting: deque[tuple[int, int, str]] = deque()  # start, end, symbol
        self._num_released = 0

    def add_token(self, token_id: int, text: str, num_chars: int) -> None:
        """Notes a token.

        Args:
            text: what the detokenizer returned for it.
            num_chars: characters of the answer up to the end of `text`.
        """
        symbol, own = self._by_id.get(token_id, ("", ""))
        if symbol and text.endswith(own):
            self._waiting.append((num_chars - len(own), num_chars, symbol))

    def release(self, text: str) -> str:
        """The next part of the answer's text, with symbols for its marker tokens."""
        begin, end = self._num_released, self._num_released + len(text)
        self._num_released = end
        if not self._waiting:
            return text
        parts: list[str] = []
        at = begin
        while self._waiting and self._waiting[0][1] <= end:
            marker_start, marker_end, symbol = self._waiting.popleft()
            # A stop string may have held back a part of the marker; the rest stays text.
            if marker_start < at:
                continue
            parts += [text[at - begin : marker_start - begin], symbol]
            at = marker_end
        return "".join([*parts, text[at - begin :]])
