"""Answers of several messages, each for a channel: OpenAI's harmony, which gpt-oss writes.

A message is a header, `<|message|>`, a text, and a token that ends it. The header names the channel
and, for a call, its recipient: `<|channel|>commentary to=functions.NAME <|constrain|>json`. The
prompt ends with `<|start|>assistant`, with which the header of each later message begins.
Source: https://cookbook.openai.com/articles/openai-harmony.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

from taco_gateway.text.response.formats import NamedCall, ReasoningFormat, ToolFormat

_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=\s*(?P<functions>functions\.\s*)?(?P<name>[^\s<]+)")
_EVERYBODY = ("user", "all", "assistant")  # recipients that are no tools


class MessageKind(Enum):
    """What the text of a message is."""

    REASONING = auto()
    CONTENT = auto()
    CALL = auto()


@dataclass(frozen=True, slots=True)
class Header:
    """The kind of a message, and the function that it calls (empty: none)."""

    kind: MessageKind
    function: str = ""


@dataclass(frozen=True, slots=True)
class ChannelFormat:
    """The tokens and names of such answers."""

    start: str = "<|start|>"
    role: str = "assistant"
    message: str = "<|message|>"
    end: str = "<|end|>"
    # They end the answer too.
    last_ends: tuple[str, ...] = ("<|return|>", "<|call|>")

    @property
    def reasoning_header(self) -> str:
        return f"<|channel|>analysis{self.message}"

    @property
    def content_headers(self) -> tuple[str, ...]:
        """Of the answer, and of one in JSON."""
        return (
            f"<|channel|>final{self.message}",
            f"<|channel|>final <|constrain|>json{self.message}",
        )

    @property
    def preamble_header(self) -> str:
        """Of content that precedes a call."""
        return f"<|channel|>commentary{self.message}"

    @property
    def reasoning(self) -> ReasoningFormat:
        """The first message, where it is reasoning."""
        return ReasoningFormat(opens=(self.reasoning_header,), closes=(self.end,))

    @property
    def call(self) -> ToolFormat:
        """A message that is a call, as most models write it."""
        return self.calls[0]

    @property
    def calls(self) -> tuple[ToolFormat, ...]:
        """The forms of a call: models write the recipient behind the channel, and the chat template
        in front of it.
        """
        types = (" <|constrain|>json", " json", "")
        channel = "<|channel|>commentary"
        behind = [_call(f"{channel} to=functions.", f"{one}{self.message}") for one in types]
        before = [_call(" to=functions.", f"{channel}{one}{self.message}") for one in types]
        return (*behind, *before)

    @property
    def tokens(self) -> tuple[str, ...]:
        """The special tokens without which a model cannot write such answers."""
        return ("<|channel|>", self.start, self.message, self.end)

    def literals(self) -> tuple[str, ...]:
        """All texts that may consist of or contain marker tokens."""
        return (*self.tokens, *self.last_ends, *self.call.literals())

    def read_header(self, text: str, tools: Collection[str]) -> Header:
        """What the header of a message says, without the token that ends it.

        Messages to tools of the model's own, such as python, are reasoning.

        Args:
            tools: names of the request's tools, which some models write without `functions.`.
        """
        channel, recipient = _CHANNEL.search(text), _RECIPIENT.search(text)
        if recipient is not None:
            name = recipient["name"]
            if recipient["functions"] is not None or name in tools:
                return Header(MessageKind.CALL, name)
            if name not in _EVERYBODY:
                return Header(MessageKind.REASONING)
        is_reasoning = channel is not None and channel[1] == "analysis"
        return Header(MessageKind.REASONING if is_reasoning else MessageKind.CONTENT)


def _call(opens: str, between: str) -> ToolFormat:
    named = NamedCall(name_ends=(between, " ", "<"), between=(between,))
    return ToolFormat(opens=(opens,), named_call=named)


HARMONY = ChannelFormat()
