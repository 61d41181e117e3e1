"""Base classes of parsers that a plug-in brings as code.

A description (`formats`) is the better choice where one can say the format: the server can then
also force calls. One object parses one answer. Its text comes in pieces of any length.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class ContentPart:
    """Text of the content."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The beginning of a call."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A fragment of the current call's arguments, which are the text of a JSON object."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The current call is complete."""


AnswerPart = ContentPart | CallStart | CallArguments | CallEnd


class ToolParser(ABC):
    """Divides an answer, without its reasoning, into content and calls.

    Args:
        schemas: the JSON schema of the parameters of each tool, by name.

    Attributes:
        markers: texts of special tokens that the parser must see.
    """

    markers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self.schemas = schemas

    @abstractmethod
    def feed(self, text: str) -> Iterable[AnswerPart]:
        """The parts that a piece of text adds."""

    def finish(self) -> Iterable[AnswerPart]:
        """The parts that the end of the answer adds: text that was held back."""
        return ()


@dataclass(frozen=True, slots=True)
class ReasoningStep:
    """What a piece of text adds to the reasoning.

    Attributes:
        reasoning: new text of the reasoning.
        rest: text behind the reasoning, which is over; None: the reasoning may continue.
    """

    reasoning: str = ""
    rest: str | None = None


class ReasoningParser(ABC):
    """Divides an answer into reasoning and the rest.

    Args:
        prompt_end: text of the last tokens of the prompt, special tokens included.

    Attributes:
        markers: texts of special tokens that the parser must see.
    """

    markers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, prompt_end: str) -> None:
        self.prompt_end = prompt_end

    @abstractmethod
    def feed(self, text: str) -> ReasoningStep:
        """Parses a piece of text. There is no further call once a step has a `rest`."""

    def finish(self) -> ReasoningStep:
        """Parses the end of the answer: text that was held back."""
        return ReasoningStep()
