"""Reads an answer of several messages, each for a channel; see `channel_format`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress

from taco_gateway.text.response.answer import Answer, TrimmedText
from taco_gateway.text.response.channel_format import ChannelFormat, Header, MessageKind
from taco_gateway.text.response.cursor import Cursor, NotACallError, Texts
from taco_gateway.text.response.marker_tokens import MarkerTokens

_MAX_HEADER_CHARS = 512
_BETWEEN = "\n\n"  # of two messages of one kind


class ChannelReader:
    """Divides the messages of an answer into reasoning, content and calls.

    Text outside of a message is content. A header that is cut short is no part of the answer.

    Args:
        set_in_reasoning: is told whether the text that follows is reasoning.
        first: kind of the message that the prompt has begun; None: the answer begins with a header.
        parses_calls: calls are calls; otherwise they are content.
    """

    def __init__(
        self,
        form: ChannelFormat,
        cursor: Cursor,
        answer: Answer,
        markers: MarkerTokens,
        set_in_reasoning: Callable[[bool], None],
        *,
        first: MessageKind | None,
        parses_calls: bool,
    ) -> None:
        self._cursor = cursor
        self._answer = answer
        self._form = form
        self._markers = markers
        self._set_in_reasoning = set_in_reasoning
        self._first = first
        self._parses_calls = parses_calls
        encoded = markers.encoded
        self._start = encoded(form.start)
        self._message = Texts((encoded(form.message),))
        self._opens = Texts((self._start, encoded("<|channel|>"), " to="))
        self._outside = Texts((self._start,))
        self._ends = Texts((*map(encoded, (form.end, *form.last_ends)), self._start))
        self._reasoning = TrimmedText(answer.add_reasoning, trims_start=True)
        self._has_reasoning = self._has_content = False

    def read(self) -> Generator[None, None, None]:
        if self._first is not None:
            yield from self._read_text(Header(self._first))
        while not self._answer.is_over and (yield from self._cursor.peek()):
            header = yield from self._read_header()
            if header is None:
                continue
            if header.kind is MessageKind.CALL and self._parses_calls:
                yield from self._read_call(header.function)
            else:
                yield from self._read_text(header)

    def _read_header(self) -> Generator[None, None, Header | None]:
        """None: it is cut short, or other text comes next, which is read as content."""
        opened = yield from self._cursor.take(self._opens)
        if not opened:
            self._set_in_reasoning(False)
            if (yield from self._cursor.until(self._outside, self._answer.content.add)):
                self._cursor.unread(self._start)
            return None
        parts = [opened]
        try:
            ended = yield from self._cursor.until(self._message, parts.append, _MAX_HEADER_CHARS)
        except NotACallError:
            self._answer.content.add("".join(parts))
            return None
        return self._form.read_header(self._markers.spelled("".join(parts))) if ended else None

    def _read_text(self, header: Header) -> Generator[None, None, None]:
        is_reasoning = header.kind is MessageKind.REASONING
        self._set_in_reasoning(is_reasoning)
        if is_reasoning:
            sink = self._reasoning
            if self._has_reasoning:
                sink.add(_BETWEEN)
            self._has_reasoning = True
        else:
            sink = self._answer.content
            if self._has_content:
                sink.add(_BETWEEN)
            self._has_content = True
        ended = yield from self._cursor.until(self._ends, sink.add)
        if ended == self._start:
            self._cursor.unread(ended)
        if is_reasoning and not ended:
            sink.end()

    def _read_call(self, function: str) -> Generator[None, None, None]:
        self._set_in_reasoning(False)
        self._answer.open_call(self._markers.encoded(function))
        yield from self._cursor.spaces()
        if (yield from self._cursor.peek()) == "{":
            with suppress(NotACallError):  # the call stays incomplete
                yield from self._cursor.value(self._answer.add_arguments)
                self._answer.end_call()
        if (yield from self._cursor.until(self._ends, _drop)) == self._start:
            self._cursor.unread(self._start)


def _drop(text: str) -> None:
    """Ignores text."""
