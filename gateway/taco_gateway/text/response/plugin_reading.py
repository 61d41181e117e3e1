"""Reads an answer with the parsers of a plug-in, whose errors end no answer."""

import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from taco_gateway.text.response.answer import Answer
from taco_gateway.text.response.cursor import Cursor
from taco_gateway.text.response.marker_tokens import MarkerTokens
from taco_gateway.text.response.plugin_parsers import (
    AnswerPart,
    CallArguments,
    CallEnd,
    CallStart,
    ContentPart,
    ReasoningParser,
    ToolParser,
)

logger = logging.getLogger("taco.gateway")


class PluginSource:
    """The text of an answer for a plug-in: with the spelling of marker tokens."""

    def __init__(self, cursor: Cursor, markers: MarkerTokens) -> None:
        self._cursor = cursor
        self._markers = markers

    def chunk(self) -> Generator[None, None, str]:
        """The text that has arrived; empty at the end."""
        return self._markers.spelled((yield from self._cursor.chunk()))

    def unread(self, text: str) -> None:
        """Puts text back, in which markers are found by their spelling."""
        self._cursor.unread(self._markers.encoded(text))


def read_answer(
    parser: type[ToolParser], schemas: Mapping[str, Any], source: PluginSource, answer: Answer
) -> Generator[None, None, None]:
    """Reads content and calls. Once the parser has failed, the rest is content."""
    failing = False
    run: ToolParser | None = None
    while not answer.is_over:
        text = yield from source.chunk()
        try:
            if not failing:
                run = run or parser(schemas)
                _add_parts(run.feed(text) if text else run.finish(), answer)
        except Exception:
            logger.exception("the tool parser %s failed; the rest of the answer is content", parser)
            failing = True
        if failing:
            answer.content.add(text)
        if not text:
            return


def _add_parts(parts: Iterable[AnswerPart], answer: Answer) -> None:
    for part in parts:
        match part:
            case ContentPart(text):
                answer.content.add(text)
            case CallStart(name):
                if answer.num_calls > answer.num_whole_calls:
                    raise ValueError("a call begins inside another one")
                answer.open_call(name)
            case CallArguments(text):
                _check_open(answer)
                answer.add_arguments(text)
            case CallEnd():
                _check_open(answer)
                answer.end_call()
            case _:
                raise TypeError(f"a part is a {type(part).__name__}")
        if answer.is_over:
            return


def _check_open(answer: Answer) -> None:
    if answer.num_calls == answer.num_whole_calls:
        raise ValueError("no call has begun")


def read_reasoning(
    parser: type[ReasoningParser],
    prompt_end: str,
    source: PluginSource,
    sink: Callable[[str], None],
) -> Generator[None, None, bool]:
    """Reads the reasoning; what follows it stays in the source.

    Returns:
        The reasoning is over. False: the answer ended before.
    """
    run: ReasoningParser | None = None
    while True:
        text = yield from source.chunk()
        try:
            run = run or parser(prompt_end)
            step = run.feed(text) if text else run.finish()
            if step.reasoning:
                sink(step.reasoning)
            rest = step.rest
        except Exception:
            logger.exception("the reasoning parser %s failed; the rest is the answer", parser)
            rest = text
        if rest is not None:
            source.unread(rest)
            return True
        if not text:
            return False
