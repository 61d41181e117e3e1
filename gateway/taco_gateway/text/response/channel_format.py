"""Answers of several messages, each for a channel: OpenAI's harmony, which gpt-oss writes.

A message is a header, `<|message|>`, a text, and a token that ends it. The header names the channel
and, for a call, its recipient: `<|channel|>commentary to=functions.NAME <|constrain|>json`. The
prompt ends with `<|start|>assistant`, with which the header of each later message begins.
Source: https://cookbook.openai.com/articles/openai-harmony.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from taco_gateway.text.response.formats import NamedCall, ReasoningFormat, ToolFormat

_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=\s*(?P<functions>functions\.\s*)?(?P<name>[^\s<]+)")


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
    def content_header(self) -> str:
        return f"<|channel|>final{self.message}"

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
        between = f" <|constrain|>json{self.message}"
        named = NamedCall(name_ends=(between, " ", "<"), between=(between,))
        return ToolFormat(opens=("<|channel|>commentary to=functions.",), named_call=named)

    @property
    def tokens(self) -> tuple[str, ...]:
        """The special tokens without which a model cannot write such answers."""
        return ("<|channel|>", self.start, self.message, self.end)

    def literals(self) -> tuple[str, ...]:
        """All texts that may consist of or contain marker tokens."""
        return (*self.tokens, *self.last_ends, *self.call.literals())

    def read_header(self, text: str) -> Header:
        """What the header of a message says, without the token that ends it.

        Messages to tools of the model's own, such as python, are reasoning.
        """
        channel, recipient = _CHANNEL.search(text), _RECIPIENT.search(text)
        if recipient is not None:
            if recipient["functions"] is None:
                return Header(MessageKind.REASONING)
            return Header(MessageKind.CALL, recipient["name"])
        is_reasoning = channel is not None and channel[1] == "analysis"
        return Header(MessageKind.REASONING if is_reasoning else MessageKind.CONTENT)


HARMONY = ChannelFormat()
