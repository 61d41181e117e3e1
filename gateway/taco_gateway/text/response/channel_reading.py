"""Reads an answer of several messages, each for a channel; see `channel_format`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
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
        tools: names of the request's tools; None: calls are content.
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
        tools: Collection[str] | None,
    ) -> None:
        self._cursor = cursor
        self._answer = answer
        self._form = form
        self._markers = markers
        self._set_in_reasoning = set_in_reasoning
        self._first = first
        self._tools = tools
        encoded = markers.encoded
        self._start = encoded(form.start)
        self._header_ends = Texts((encoded(form.message), self._start))
        self._opens = Texts((self._start, encoded("<|channel|>"), " to="))
        self._outside = Texts((self._start,))
        self._next = (self._start, encoded("<|channel|>"))
        self._ends = Texts((*map(encoded, (form.end, *form.last_ends)), *self._next))
        self._reasoning = _Messages(TrimmedText(answer.add_reasoning, trims_start=True))
        self._content = _Messages(answer.content)

    def read(self) -> Generator[None, None, None]:
        if self._first is not None:
            yield from self._read_text(Header(self._first))
        while not self._answer.is_over and (yield from self._cursor.peek()):
            header = yield from self._read_header()
            if header is None:
                continue
            if header.kind is MessageKind.CALL and self._tools is not None:
                yield from self._read_call(header.function)
            else:
                yield from self._read_text(header)

    def _read_header(self) -> Generator[None, None, Header | None]:
        """None: it is cut short, or other text comes next, which is read as content."""
        opened = yield from self._cursor.take(self._opens)
        if not opened:
            yield from self._read_outside("")
            return None
        parts = [opened]
        try:
            ended = yield from self._cursor.until(
                self._header_ends, parts.append, _MAX_HEADER_CHARS
            )
        except NotACallError:
            yield from self._read_outside("".join(parts))
            return None
        text = "".join(parts)
        if ended and ended != self._start:
            return self._form.read_header(self._markers.spelled(text), self._tools or ())
        self._unread_next(ended)
        if not any(marker in text for marker in self._next):  # it begins with plain text
            self._answer.content.add(text)
        return None

    def _read_outside(self, begin: str) -> Generator[None, None, None]:
        """Reads text that is no message, up to the next one."""
        self._set_in_reasoning(False)
        self._answer.content.add(begin)
        if (yield from self._cursor.until(self._outside, self._answer.content.add)):
            self._cursor.unread(self._start)

    def _read_text(self, header: Header) -> Generator[None, None, None]:
        is_reasoning = header.kind is MessageKind.REASONING
        self._set_in_reasoning(is_reasoning)
        text = self._reasoning if is_reasoning else self._content
        ended = yield from self._cursor.until(self._ends, text.add)
        self._unread_next(ended)
        text.end(is_cut=not ended)
        if ended:
            self._set_in_reasoning(False)

    def _read_call(self, function: str) -> Generator[None, None, None]:
        """Reads a call. Arguments that are no object are passed on as they are."""
        self._set_in_reasoning(False)
        self._answer.open_call(self._markers.encoded(function))
        yield from self._cursor.spaces()
        if (yield from self._cursor.peek()) == "{":
            with suppress(NotACallError):  # the call stays incomplete
                yield from self._cursor.value(self._answer.add_arguments)
                self._answer.end_call()
            self._unread_next((yield from self._cursor.until(self._ends, _drop)))
            return
        parts: list[str] = []
        self._unread_next((yield from self._cursor.until(self._ends, parts.append)))
        self._answer.add_arguments("".join(parts).rstrip() or "{}")
        self._answer.end_call()

    def _unread_next(self, ended: str) -> None:
        """Puts back what begins the next header."""
        if ended in self._next:
            self._cursor.unread(ended)


class _Messages:
    """The texts of messages of one kind, which blank lines divide."""

    def __init__(self, text: TrimmedText) -> None:
        self._text = text
        self._has_text = self._begins = False

    def add(self, text: str) -> None:
        if text.strip():
            if self._begins and self._has_text:
                self._text.add(_BETWEEN)
            self._begins, self._has_text = False, True
        self._text.add(text)

    def end(self, *, is_cut: bool) -> None:
        """Ends a message; `is_cut`: the answer ends inside of it."""
        self._begins = True
        if is_cut:
            self._text.end()


def _drop(text: str) -> None:
    """Ignores text."""
