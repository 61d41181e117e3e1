"""Divides the text of an answer into reasoning, content and tool calls, while it is generated."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from taco_gateway.text.response.answer import Answer, TrimmedText
from taco_gateway.text.response.call_readers import (
    JsonCallReader,
    NamedCallReader,
    TaggedCallReader,
)
from taco_gateway.text.response.channel_format import ChannelFormat, MessageKind
from taco_gateway.text.response.channel_reading import ChannelReader
from taco_gateway.text.response.cursor import Cursor, NotACallError, Texts
from taco_gateway.text.response.formats import ReasoningFormat, ToolFormat
from taco_gateway.text.response.marker_tokens import MarkedText, MarkerTokens
from taco_gateway.text.response.plugin_parsers import ReasoningParser, ToolParser
from taco_gateway.text.response.plugin_reading import PluginSource, read_answer, read_reasoning
from taco_gateway.text.response.python_calls import PythonCallReader
from taco_gateway.text.response.response_delta import ResponseDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserOptions:
    """What the parser of a request looks for.

    Attributes:
        markers: the marker tokens of both formats.
        reasoning: a description or a plug-in's class; None: the model's reasoning is content.
        tools: a description or a plug-in's class; None: calls are content.
        schemas: the JSON schema of the parameters of each tool, by name.
        channels: the answer consists of messages for channels; None: its parts follow each other.
        starts_inside_reasoning: the prompt has opened the reasoning.
        starts_inside_content: the prompt has begun a message with content, if there are channels.
        prompt_end: text of the last tokens of the prompt, for a class.
        max_calls: the answer ends with this call; None: no limit.
        calls_begin_answer: text that does not begin with a call is content, whatever follows.
    """

    markers: MarkerTokens
    reasoning: ReasoningFormat | type[ReasoningParser] | None = None
    tools: ToolFormat | type[ToolParser] | None = None
    channels: ChannelFormat | None = None
    schemas: Mapping[str, Any] = field(default_factory=dict)
    starts_inside_reasoning: bool = False
    starts_inside_content: bool = False
    prompt_end: str = ""
    max_calls: int | None = None
    calls_begin_answer: bool = False


class ResponseParser:
    """Parses one answer. Reasoning comes first, then content, then calls.

    White space next to markers is left out, as is text behind the first call. Text in a section for
    calls that is no call is content. The arguments of a call are passed on as they come, so those
    of an answer that is cut short are incomplete.

    Attributes:
        in_reasoning: the answer is inside its reasoning.
    """

    def __init__(self, options: ParserOptions) -> None:
        self._options = options
        self._marked = MarkedText(options.markers)
        self._cursor = Cursor()
        tools = options.tools
        self._answer = Answer(
            options.markers,
            num_id_chars=tools.num_id_chars if isinstance(tools, ToolFormat) else 0,
            max_calls=options.max_calls,
        )
        self.in_reasoning = options.starts_inside_reasoning and options.reasoning is not None
        self._num_undecided: int | None = 0  # tokens before it is known whether there is reasoning
        self._run: Generator[None, None, None] | None = self._parse()
        self._advance()

    @property
    def num_whole_calls(self) -> int:
        """Number of calls that are complete."""
        return self._answer.num_whole_calls

    @property
    def is_over(self) -> bool:
        """The last call that the request allows is complete."""
        return self._answer.is_over

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
            self._answer.count_reasoning_tokens(num_tokens + (self._num_undecided or 0))
            self._num_undecided = None
        elif self._num_undecided is not None:
            self._num_undecided += num_tokens

    def finish(self) -> None:
        """Ends the text."""
        self._cursor.end()
        self._advance()

    def take(self) -> ResponseDelta:
        """The parts that are new since the last call."""
        return self._answer.take()

    def _advance(self) -> None:
        if self._run is not None:
            try:
                next(self._run)
            except StopIteration:
                self._run = None

    def _parse(self) -> Generator[None, None, None]:
        answer, tools = self._answer, self._options.tools
        if self._options.channels is not None:
            yield from self._read_channels(self._options.channels)
            answer.content.end()
            return
        yield from self._read_reasoning()
        if isinstance(tools, type):
            yield from read_answer(tools, self._options.schemas, self._source(), answer)
        elif tools is not None:
            yield from self._read_content_and_calls(tools)
        else:
            yield from self._cursor.until(Texts(()), answer.content.add)
        answer.content.end()

    def _read_channels(self, form: ChannelFormat) -> Generator[None, None, None]:
        def set_in_reasoning(value: bool) -> None:
            self.in_reasoning = value
            if not value:
                self._num_undecided = None

        first = None
        if self.in_reasoning:
            first = MessageKind.REASONING
        elif self._options.starts_inside_content:
            first = MessageKind.CONTENT
        reader = ChannelReader(
            form,
            self._cursor,
            self._answer,
            self._options.markers,
            set_in_reasoning,
            first=first,
            tools=self._options.schemas.keys() if self._options.tools is not None else None,
        )
        yield from reader.read()

    def _read_reasoning(self) -> Generator[None, None, None]:
        form = self._options.reasoning
        if form is None:
            return
        if isinstance(form, type):
            yield from self._read_reasoning_with(form)
            return
        spaces = yield from self._cursor.spaces()
        # Some models repeat the marker with which the prompt ends.
        opened = yield from self._cursor.take(self._texts(form.opens))
        if not opened and not self.in_reasoning:
            self._num_undecided = None
            self._answer.content.add(spaces)
            return
        self.in_reasoning = True
        reasoning = TrimmedText(self._answer.add_reasoning, trims_start=True)
        tools = self._options.tools if isinstance(self._options.tools, ToolFormat) else None
        closed = yield from self._cursor.until(self._texts(form.ends(tools)), reasoning.add)
        if not closed:
            reasoning.end()
            return
        if closed not in self._texts(form.closes).texts:
            self._cursor.unread(closed)
        self.in_reasoning = False
        self._answer.content.trims_start = True

    def _read_reasoning_with(self, parser: type[ReasoningParser]) -> Generator[None, None, None]:
        def add(text: str) -> None:
            self.in_reasoning = True
            self._answer.add_reasoning(text)

        is_over = yield from read_reasoning(parser, self._options.prompt_end, self._source(), add)
        if not self.in_reasoning:
            self._num_undecided = None
        elif is_over:
            self.in_reasoning = False
            self._answer.content.trims_start = True

    def _read_content_and_calls(self, tools: ToolFormat) -> Generator[None, None, None]:
        opens, content = self._texts((*tools.opens, *tools.bare_opens)), self._answer.content
        bare_opens = self._texts(tools.bare_opens).texts
        if tools.starts_answer:
            spaces = yield from self._cursor.spaces()
            if (yield from self._cursor.peek()) == tools.first_char:
                yield from self._read_section_of_known(tools)
            else:
                content.add(spaces)
        if self._options.calls_begin_answer and not self._answer.num_calls:
            content.add((yield from self._cursor.spaces()))
            if opened := (yield from self._cursor.take(self._texts(tools.opens))):
                yield from self._read_section(tools, opened)
            else:
                opens = Texts(())
        while not self.is_over:
            opened = yield from self._cursor.until(opens, content.add)
            if not opened:
                break
            if opened in bare_opens:
                self._cursor.unread(opened)
                yield from self._read_section_of_known(tools, is_bare=True)
            else:
                yield from self._read_section(tools, opened)

    def _read_section_of_known(
        self, tools: ToolFormat, *, is_bare: bool = False
    ) -> Generator[None, None, None]:
        """Reads a section without a marker: only names of the request's tools make a call."""
        self._answer.known_names = self._options.schemas.keys()
        yield from self._read_section(tools, "", is_bare=is_bare)
        self._answer.known_names = None

    def _read_section(
        self, tools: ToolFormat, opened: str, *, is_bare: bool = False
    ) -> Generator[None, None, None]:
        held = self._cursor.record = [opened]
        num_before = self._answer.num_calls
        closes = self._texts(tools.closes)
        try:
            if is_bare:
                yield from self._read_bare_call(tools, closes)
            else:
                yield from self._read_calls(tools, closes)
        except NotACallError:
            if not is_bare and self._answer.num_calls > num_before and closes.texts:
                yield from self._cursor.until(closes, _drop)
        finally:
            self._cursor.record = None
        if self._answer.num_calls == num_before:
            self._answer.content.add("".join(held))

    def _read_calls(self, tools: ToolFormat, closes: Texts) -> Generator[None, None, None]:
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
            if not (yield from self._cursor.peek()):
                raise NotACallError
            yield from self._read_call(tools)
            self._answer.end_call()
            if self.is_over:
                return
            yield from self._cursor.spaces()
            separated = yield from self._cursor.take(separator)
            if not separated and not in_list and not closes.texts:
                return

    def _read_bare_call(self, tools: ToolFormat, closes: Texts) -> Generator[None, None, None]:
        """Reads one call, and the marker that would close its section."""
        yield from self._read_call(tools, is_bare=True)
        self._answer.end_call()
        if not self.is_over:
            yield from self._cursor.spaces()
            yield from self._cursor.take(closes)

    def _read_call(
        self, tools: ToolFormat, *, is_bare: bool = False
    ) -> Generator[None, None, None]:
        mark = yield from self._cursor.peek()
        call = _Call(self._answer, self._cursor)
        encode = self._options.markers.encoded
        if tools.json_call is not None and (mark == "{" or tools.named_call is None):
            yield from JsonCallReader(tools.json_call).read(self._cursor, call)
        elif tools.named_call is not None:
            yield from NamedCallReader(tools.named_call, encode).read(self._cursor, call)
        elif tools.python_call is not None:
            yield from PythonCallReader().read(self._cursor, call)
        else:
            assert tools.tagged_call is not None
            reader = TaggedCallReader(
                tools.tagged_call, encode, self._options.schemas, tools.closes, is_bare=is_bare
            )
            yield from reader.read(self._cursor, call)

    def _source(self) -> PluginSource:
        return PluginSource(self._cursor, self._options.markers)

    def _texts(self, literals: tuple[str, ...]) -> Texts:
        return Texts(tuple(map(self._options.markers.encoded, literals)))


class _Call:
    """The sink of one call; the text of a section that has a call is no content."""

    def __init__(self, answer: Answer, cursor: Cursor) -> None:
        self._answer = answer
        self._cursor = cursor

    def open(self, name: str, own_id: str = "") -> None:
        self._answer.open_call(name, own_id)
        self._cursor.record = None

    def arguments(self, fragment: str) -> None:
        self._answer.add_arguments(fragment)


def _drop(text: str) -> None:
    """Ignores text."""
