"""What the answer of a request consists of: reasoning, content and calls of tools."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from taco_gateway.text.grammar.canonical import ConstraintError
from taco_gateway.text.response.channel_format import ChannelFormat
from taco_gateway.text.response.formats import ReasoningFormat, ToolFormat


class Enforcement(Enum):
    """How far the arguments of a call follow the schema of the tool's parameters.

    STRICT: they are valid. A schema that cannot be enforced is an error.
    LENIENT: they are valid as far as the schema can be enforced.
    NONE: they are a JSON object.
    """

    STRICT = "strict"
    LENIENT = "lenient"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A function that the answer may call.

    Attributes:
        schema: JSON schema of its parameters.
        place: of the schema in the request, for errors.
    """

    name: str
    schema: Any
    place: str
    enforcement: Enforcement

    def error(self, message: str, path: str = "") -> ConstraintError:
        """An error about the tool's schema, for clients."""
        return ConstraintError(f"{self.place}{path}: {message}", param_of(self.place))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerWish:
    """What a request demands of its answer.

    Attributes:
        tools: the functions that it may call.
        requires_call: it is one or more calls.
        has_one_call: it has at most one.
        has_constraint: a constraint holds for its content.
        max_reasoning_tokens: number of tokens of its reasoning; None: no limit.
    """

    tools: tuple[CallableTool, ...] = ()
    requires_call: bool = False
    has_one_call: bool = False
    has_constraint: bool = False
    max_reasoning_tokens: int | None = None

    @property
    def constrains_calls(self) -> bool:
        """Calls must follow a grammar."""
        if not self.tools:
            return False
        return (
            self.requires_call or self.has_one_call or self.has_constraint or self.has_strict_tool
        )

    @property
    def has_strict_tool(self) -> bool:
        """The arguments of a tool must be valid."""
        return any(tool.enforcement is Enforcement.STRICT for tool in self.tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRules:
    """The calls of an answer.

    Attributes:
        is_required: the answer has a call, and no content.
        has_one_call: at most one.
    """

    format: ToolFormat
    tools: tuple[CallableTool, ...]
    is_required: bool = False
    has_one_call: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningRules:
    """The reasoning of an answer.

    Attributes:
        has_begun: the prompt has opened it.
        max_tokens: number of its tokens before the marker that ends it; None: no limit.
        end_token_ids: the tokens that write that marker, if the number is limited.
    """

    format: ReasoningFormat
    has_begun: bool = False
    max_tokens: int | None = None
    end_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRules:
    """An answer of several messages, each for a channel.

    Attributes:
        in_content: the prompt ends inside the message with the content.
    """

    format: ChannelFormat
    in_content: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRules:
    """The parts of an answer, in their order: reasoning, then content or calls.

    Attributes:
        markers: ids, by text, of the tokens in the markers of the formats.
        special_ids: tokens without text; see `ids_without_text`.
        end_ids: tokens that end the answer.
        vocab_size: number of token ids.
        reasoning, calls: None: the answer has none, or they are free text.
        channels: None: the parts follow each other without headers.
    """

    markers: Mapping[str, int] = field(default_factory=dict)
    special_ids: frozenset[int] = frozenset()
    end_ids: frozenset[int] = frozenset()
    vocab_size: int = 0
    reasoning: ReasoningRules | None = None
    calls: CallRules | None = None
    channels: ChannelRules | None = None


def param_of(place: str) -> str:
    """The field of a request in which a place is."""
    return re.split(r"[.\[]", place)[0]


def ids_without_text(
    added_tokens: Mapping[str, int], special_ids: Collection[int]
) -> frozenset[int]:
    """The tokens that no text of a grammar contains: special tokens, and those in angle brackets.

    The worker's vocabulary is read so (toktrie_hf_tokenizers).
    """
    in_brackets = (
        token_id
        for text, token_id in added_tokens.items()
        if text.startswith("<") and text.endswith(">")
    )
    return frozenset(special_ids).union(in_brackets)
