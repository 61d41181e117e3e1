"""Divides the text of an answer into reasoning, content and tool calls, while it is generated."""

import secrets
import string
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from taco_gateway.text.response.call_readers import (
    JsonCallReader,
    NamedCallReader,
    TaggedCallReader,
)
from taco_gateway.text.response.cursor import Cursor, NotACallError, Texts
from taco_gateway.text.response.formats import ReasoningFormat, ToolFormat
from taco_gateway.text.response.marker_tokens import MarkedText, MarkerTokens
from taco_gateway.text.response.response_delta import CallDelta, ResponseDelta

_ID_CHARS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserOptions:
    """What the parser of a request looks for.

    Attributes:
        markers: the marker tokens of both formats.
        reasoning: None: the model's reasoning is content.
        tools: None: calls are content.
        schemas: the JSON schema of the parameters of each tool, by name.
        starts_inside_reasoning: the prompt has opened the reasoning.
        max_calls: the answer ends with this call; None: no limit.
    """

    markers: MarkerTokens
    reasoning: ReasoningFormat | None = None
    tools: ToolFormat | None = None
    schemas: Mapping[str, Any] = field(default_factory=dict)
    starts_inside_reasoning: bool = False
    max_calls: int | None = None


class ResponseParser:
    """Parses one answer. Reasoning comes first, then content, then calls.

    White space next to markers is left out, as is text behind the first call. Text in a section for
    calls that is no call is content. The arguments of a call are passed on as they come, so those
    of an answer that is cut short are incomplete.

    Attributes:
        in_reasoning: the answer is inside its reasoning.
        num_whole_calls: number of calls that are complete.
        is_over: the last call that the request allows is complete.
    """

    def __init__(self, options: ParserOptions) -> None:
        self._options = options
        self._decode = options.markers.decoded
        self._marked = MarkedText(options.markers)
        self._cursor = Cursor()
        self._delta = ResponseDelta()
        self._content = _TrimmedText(self._add_content)
        self._num_calls = 0
        self.in_reasoning = options.starts_inside_reasoning and options.reasoning is not None
        self.num_whole_calls = 0
        self.is_over = False
        self._num_undecided: int | None = 0  # tokens before it is known whether there is reasoning
        self._run: Generator[None, None, None] | None = self._parse()
        self._advance()

    def add_token(self, token_id: int, text: str, num_chars: int) -> None:
        """Notes a generated token before `feed` gets its text; see `MarkedText.add_token`."""
        self._marked.add_token(token_id, text, num_chars)

    def feed(self, text: str, num_tokens: int = 0) -> None:
        """Adds text, which may lag behind the tokens.

        Args:
            num_tokens: new tokens, for the number of tokens of the reasoning.
        """
        was_inside = self.in_reasoning
        if marked := self._marked.release(text):
            self._cursor.feed(marked)
            self._advance()
        if was_inside or self.in_reasoning:
            self._delta.num_reasoning_tokens += num_tokens + (self._num_undecided or 0)
            self._num_undecided = None
        elif self._num_undecided is not None:
            self._num_undecided += num_tokens

    def finish(self) -> None:
        """Ends the text."""
        self._cursor.end()
        self._advance()

    def take(self) -> ResponseDelta:
        """The parts that are new since the last call."""
        delta, self._delta = self._delta, ResponseDelta()
        return delta

    def _advance(self) -> None:
        if self._run is not None:
            try:
                next(self._run)
            except StopIteration:
                self._run = None

    def _parse(self) -> Generator[None, None, None]:
        yield from self._read_reasoning()
        tools = self._options.tools
        if tools is None:
            yield from self._cursor.until(Texts(()), self._content.add)
            self._content.end()
            return
        opens = self._texts(tools.opens)
        if tools.starts_answer:
            spaces = yield from self._cursor.spaces()
            if (yield from self._cursor.peek()) == "{":
                yield from self._read_section(tools, "", only_known=True)
            else:
                self._content.add(spaces)
        while not self.is_over:
            opened = yield from self._cursor.until(opens, self._content.add)
            if not opened:
                break
            yield from self._read_section(tools, opened, only_known=False)
        self._content.end()

    def _read_reasoning(self) -> Generator[None, None, None]:
        form = self._options.reasoning
        if form is None:
            return
        spaces = yield from self._cursor.spaces()
        # Some models repeat the marker with which the prompt ends.
        opened = yield from self._cursor.take(self._texts(form.opens))
        if not opened and not self.in_reasoning:
            self._num_undecided = None
            self._content.add(spaces)
            return
        self.in_reasoning = True
        reasoning = _TrimmedText(self._add_reasoning, trims_start=True)
        closed = yield from self._cursor.until(self._texts(form.closes), reasoning.add)
        if not closed:
            reasoning.end()
            return
        self.in_reasoning = False
        self._content.trims_start = True

    def _read_section(
        self, tools: ToolFormat, opened: str, *, only_known: bool
    ) -> Generator[None, None, None]:
        held = self._cursor.record = [opened]
        num_before = self._num_calls
        closes = self._texts(tools.closes)
        try:
            yield from self._read_calls(tools, closes, only_known=only_known)
        except NotACallError:
            if self._num_calls > num_before and closes.texts:
                yield from self._cursor.until(closes, _drop)
        finally:
            self._cursor.record = None
        if self._num_calls == num_before:
            self._content.add("".join(held))

    def _read_calls(
        self, tools: ToolFormat, closes: Texts, *, only_known: bool
    ) -> Generator[None, None, None]:
        separator = Texts((tools.separator,) if tools.separator else ())
        yield from self._cursor.spaces()
        in_list = False
        if tools.has_list:
            in_list = bool((yield from self._cursor.take(Texts(("[",)))))
        while True:
            yield from self._cursor.spaces()
            if (yield from self._cursor.take(closes)):
                return
            if in_list and (yield from self._cursor.take(Texts(("]",)))):
                in_list = False
                continue
            yield from self._read_call(tools, only_known=only_known)
            if self._has_last_call():
                return
            yield from self._cursor.spaces()
            separated = yield from self._cursor.take(separator)
            if not separated and not in_list and not closes.texts:
                return

    def _has_last_call(self) -> bool:
        limit = self._options.max_calls
        self.is_over = limit is not None and self._num_calls >= limit
        return self.is_over

    def _read_call(self, tools: ToolFormat, *, only_known: bool) -> Generator[None, None, None]:
        mark = yield from self._cursor.peek()
        if not mark:
            raise NotACallError
        call = _Call(self, only_known=only_known)
        if tools.json_call is not None and (mark == "{" or tools.named_call is None):
            yield from JsonCallReader(tools.json_call).read(self._cursor, call)
        elif tools.named_call is not None:
            encode = self._options.markers.encoded
            yield from NamedCallReader(tools.named_call, encode).read(self._cursor, call)
        else:
            assert tools.tagged_call is not None
            reader = TaggedCallReader(tools.tagged_call, self._options.schemas)
            yield from reader.read(self._cursor, call)
        self.num_whole_calls += 1

    def open_call(self, name: str, *, only_known: bool) -> int:
        """Begins a call and returns its index.

        Raises:
            NotACallError: the request has no such tool, and `only_known`.
        """
        if only_known and name not in self._options.schemas:
            raise NotACallError
        if self._num_calls == 0:
            self._content.drop()
        self._cursor.record = None
        index, self._num_calls = self._num_calls, self._num_calls + 1
        assert self._options.tools is not None
        num_chars = self._options.tools.num_id_chars
        call_id = "call_" if not num_chars else ""
        call_id += "".join(secrets.choice(_ID_CHARS) for _ in range(num_chars or 24))
        self._delta.calls.append(CallDelta(index, call_id, self._decode(name)))
        return index

    def add_arguments(self, index: int, fragment: str) -> None:
        """Adds text to the arguments of a call."""
        if not (text := self._decode(fragment)):
            return
        last = self._delta.calls[-1] if self._delta.calls else None
        if last is not None and last.index == index:
            last.arguments += text
        else:
            self._delta.calls.append(CallDelta(index, arguments=text))

    def _add_content(self, text: str) -> None:
        self._delta.content += self._decode(text)

    def _add_reasoning(self, text: str) -> None:
        self._delta.reasoning += self._decode(text)

    def _texts(self, literals: tuple[str, ...]) -> Texts:
        return Texts(tuple(map(self._options.markers.encoded, literals)))


class _Call:
    """The sink of one call."""

    def __init__(self, parser: ResponseParser, *, only_known: bool) -> None:
        self._parser = parser
        self._only_known = only_known
        self._index = -1

    def open(self, name: str) -> None:
        self._index = self._parser.open_call(name, only_known=self._only_known)

    def arguments(self, fragment: str) -> None:
        self._parser.add_arguments(self._index, fragment)


class _TrimmedText:
    """Holds back white space until it is known whether a marker follows.

    Attributes:
        trims_start: leave out white space before the first other character.
    """

    def __init__(self, sink: Callable[[str], None], *, trims_start: bool = False) -> None:
        self._sink = sink
        self._spaces: list[str] = []
        self._is_dropped = False
        self.trims_start = trims_start

    def add(self, text: str) -> None:
        if self._is_dropped:
            return
        if self.trims_start:
            text = text.lstrip()
            self.trims_start = not text
        kept = text.rstrip()
        if kept:
            self._sink("".join([*self._spaces, kept]))
            self._spaces.clear()
        if len(kept) < len(text):
            self._spaces.append(text[len(kept) :])

    def end(self) -> None:
        """The text ends here, without a marker: white space belongs to it."""
        self._sink("".join(self._spaces))
        self._spaces.clear()

    def drop(self) -> None:
        """Leaves out the white space at the end and all later text."""
        self._spaces.clear()
        self._is_dropped = True


def _drop(text: str) -> None:
    """Ignores text."""
