"""A cursor over text that arrives in pieces.

Its methods are generators: they yield when they need more text, and return at the end of the text
what they have found. Each character is visited a bounded number of times.
"""

import re
from collections.abc import Callable, Generator, Sequence

Sink = Callable[[str], None]
MAX_NAME_CHARS = 256

_SPACES = re.compile(r"[ \t\r\n]*")
_STRING_STOP = re.compile(r'["\\]')
_VALUE_STOP = re.compile('[][{}"\ud800-\udfff]')
_SCALAR_STOP = re.compile("[],} \t\r\n\ud800-\udfff]")


class NotACallError(Exception):
    """The text is not of the form that was expected."""


class Texts:
    """Texts to search for, none of which contains another one."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = tuple(texts)
        for text in texts:
            assert text, "an empty marker"
        self.longest = max(map(len, texts), default=0)
        self.pattern = re.compile("|".join(map(re.escape, texts)) if texts else r"(?!)")

    def num_held(self, text: str, start: int) -> int:
        """Number of characters at the end of `text[start:]` that may begin one of the texts."""
        for count in range(min(self.longest - 1, len(text) - start), 0, -1):
            tail = text[len(text) - count :]
            if any(literal.startswith(tail) for literal in self.texts):
                return count
        return 0


class Cursor:
    """The unread text of an answer.

    Attributes:
        record: gets all text that is read, while it is not None.
    """

    def __init__(self) -> None:
        self._text = ""
        self._position = 0
        self._ended = False
        self.record: list[str] | None = None

    def feed(self, text: str) -> None:
        self._text = self._text[self._position :] + text
        self._position = 0

    def end(self) -> None:
        """No more text will come."""
        self._ended = True

    def peek(self) -> Generator[None, None, str]:
        """The next character; empty at the end."""
        while self._position >= len(self._text):
            if self._ended:
                return ""
            yield
        return self._text[self._position]

    def spaces(self) -> Generator[None, None, str]:
        """Reads white space."""
        parts: list[str] = []
        while True:
            match = _SPACES.match(self._text, self._position)
            assert match is not None
            parts.append(self._read(match.end()))
            if self._position < len(self._text) or self._ended:
                return "".join(parts)
            yield

    def chunk(self) -> Generator[None, None, str]:
        """Reads all text that has arrived; empty at the end."""
        yield from self.peek()
        return self._read(len(self._text))

    def unread(self, text: str) -> None:
        """Puts text back, to be read next; `record` loses what was read last."""
        self._unrecord(len(text))
        start = self._position - len(text)
        if start >= 0 and self._text.startswith(text, start):  # it was read just now
            self._position = start
            return
        self._text, self._position = text + self._text[self._position :], 0

    def _unrecord(self, num_chars: int) -> None:
        while self.record and num_chars:
            last = self.record.pop()
            if len(last) > num_chars:
                self.record.append(last[:-num_chars])
            num_chars -= min(num_chars, len(last))

    def chars(self, count: int) -> Generator[None, None, str]:
        """Reads `count` characters; fewer at the end."""
        while len(self._text) < self._position + count and not self._ended:
            yield
        return self._read(min(len(self._text), self._position + count))

    def before(self, stop: re.Pattern[str], sink: Sink) -> Generator[None, None, str]:
        """Reads up to the next character that matches, and returns that; empty at the end.

        Args:
            stop: matches single characters.
            sink: gets the text before it.
        """
        while True:
            found = stop.search(self._text, self._position)
            self._pass(len(self._text) if found is None else found.start(), sink)
            if found is not None:
                return found[0]
            if self._ended:
                return ""
            yield

    def take(self, texts: Texts) -> Generator[None, None, str]:
        """Reads one of the texts if it comes next; empty: none of them does."""
        while True:
            for text in texts.texts:
                if self._text.startswith(text, self._position):
                    return self._read(self._position + len(text))
            rest = self._text[self._position : self._position + texts.longest]
            if self._ended or not any(text.startswith(rest) for text in texts.texts):
                return ""
            yield

    def until(
        self, texts: Texts, sink: Sink, max_chars: int | None = None
    ) -> Generator[None, None, str]:
        """Reads up to and including one of the texts, and returns it; empty at the end.

        Args:
            sink: gets the text before it.

        Raises:
            NotACallError: more than `max_chars` precede it.
        """
        num_chars = 0
        while True:
            found = texts.pattern.search(self._text, self._position)
            end = len(self._text)
            if found is not None:
                end = found.start()
            elif not self._ended:
                end -= texts.num_held(self._text, self._position)
            if end > self._position:
                num_chars += end - self._position
                if max_chars is not None and num_chars > max_chars:
                    raise NotACallError
                sink(self._read(end))
            if found is not None:
                return self._read(found.end())
            if self._ended:
                return ""
            yield

    def value(self, sink: Sink) -> Generator[None, None, None]:
        """Reads a JSON value, which is not checked beyond its brackets and strings.

        Raises:
            NotACallError: the text ends inside it, or a marker or a wrong bracket does not fit.
        """
        first = yield from self.peek()
        if first == '"':
            yield from self._string(sink)
        elif first in ("{", "["):
            yield from self._nested(sink)
        else:
            yield from self._scalar(sink)

    def rest_of_object(self, sink: Sink) -> Generator[None, None, None]:
        """Reads a JSON object whose first brace has been read; see `value`."""
        return self._nested(sink, depth=1)

    def _nested(self, sink: Sink, depth: int = 0) -> Generator[None, None, None]:
        while True:
            end, depth = self._brackets(depth)
            self._pass(end, sink)
            if depth == 0:
                return
            if end == len(self._text):
                yield from self._more()
            elif self._text[end] == '"':
                yield from self._string(sink)
            else:
                raise NotACallError

    def _brackets(self, depth: int) -> tuple[int, int]:
        """Position and depth before the next string or marker, or at the end of the value."""
        position = self._position
        while (found := _VALUE_STOP.search(self._text, position)) is not None:
            char = found[0]
            if char not in "[]{}":
                return found.start(), depth
            depth += 1 if char in "[{" else -1
            position = found.end()
            if depth == 0:
                return position, depth
        return len(self._text), depth

    def _string(self, sink: Sink) -> Generator[None, None, None]:
        self._pass(self._position + 1, sink)
        while True:
            found = _STRING_STOP.search(self._text, self._position)
            if found is None:
                self._pass(len(self._text), sink)
                yield from self._more()
            elif found[0] == '"':
                self._pass(found.end(), sink)
                return
            else:
                self._pass(found.start(), sink)
                while len(self._text) < self._position + 2:
                    if self._ended:
                        self._pass(len(self._text), sink)
                    yield from self._more()
                self._pass(self._position + 2, sink)

    def _scalar(self, sink: Sink) -> Generator[None, None, None]:
        num_chars = 0
        while True:
            found = _SCALAR_STOP.search(self._text, self._position)
            end = len(self._text) if found is None else found.start()
            num_chars += end - self._position
            self._pass(end, sink)
            if found is not None:
                if not num_chars:
                    raise NotACallError
                return
            yield from self._more()

    def _more(self) -> Generator[None, None, None]:
        """Waits for text inside a value."""
        if self._ended:
            raise NotACallError
        yield

    def _pass(self, end: int, sink: Sink) -> None:
        if end > self._position:
            sink(self._read(end))

    def _read(self, end: int) -> str:
        text = self._text[self._position : end]
        self._position = end
        if self.record is not None and text:
            self.record.append(text)
        return text
