"""Finds the log probabilities of an answer's text among those of all its tokens."""

from collections.abc import Sequence

from taco_gateway.text.output.token_logprobs import TokenLogprob


class TextLogprobs:
    """Holds the entries of tokens until it is known which part of the answer has their text.

    Entries of reasoning, markers and calls are dropped, so the tokens of a message's entries add up
    to its text. A token with the end of one part and the beginning of the next has one entry.
    """

    def __init__(self) -> None:
        self._rows: list[TokenLogprob] = []

    def add(self, rows: Sequence[TokenLogprob]) -> None:
        """Adds the entries of new tokens."""
        self._rows += rows

    def drop(self, text: str) -> None:
        """Drops the entries up to the end of a text that is no message."""
        self._take(text, is_message=False)

    def drop_all(self) -> None:
        self._rows.clear()

    def take(self, text: str) -> list[TokenLogprob]:
        """Removes the entries of a message's new text, and returns them."""
        return self._take(text, is_message=True)

    def _take(self, text: str, *, is_message: bool) -> list[TokenLogprob]:
        if not self._rows:
            return []
        wanted = text.encode()
        pieces = [row.chosen.token_bytes if row.in_text else b"" for row in self._rows]
        joined = b"".join(pieces)
        start = 0
        if not joined.startswith(wanted):
            # Markers come before the text. They may contain the same letters.
            start = joined.rfind(wanted) if is_message else joined.find(wanted)
        if start < 0:  # the tokenizer has changed the text
            start, wanted = 0, joined
        end = start + len(wanted)
        first = last = position = 0
        for number, piece in enumerate(pieces, 1):
            position += len(piece)
            if position <= start:
                first = number
            if position - len(piece) < end and piece:
                last = number
        taken, self._rows = self._rows[first:last], self._rows[last:]
        return taken
