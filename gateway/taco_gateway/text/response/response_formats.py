"""The formats of the served model, and the parser options of its requests."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from taco_gateway.text.response.built_in import REASONING_FORMATS, TOOL_FORMATS
from taco_gateway.text.response.formats import ReasoningFormat
from taco_gateway.text.response.marker_tokens import MarkerTokens
from taco_gateway.text.response.response_parser import ParserOptions
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.errors import ConfigurationError

Format = TypeVar("Format")
_PROMPT_TAIL = 16  # tokens at the end of a prompt that may hold a marker


class ResponseFormats:
    """The formats in which the served model writes calls and reasoning.

    Args:
        tokenizer: of the model; None: nothing is parsed.
        tool_parser, reasoning_parser: names of formats; None: no such format.

    Raises:
        ConfigurationError: there is no such format.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, tool_parser: str | None, reasoning_parser: str | None
    ) -> None:
        self._tokenizer = tokenizer
        self._tools = _named("--tool-call-parser", TOOL_FORMATS, tool_parser)
        self._reasoning = _named("--reasoning-parser", REASONING_FORMATS, reasoning_parser)
        self._markers: dict[bool, MarkerTokens] = {}

    @property
    def parses_tools(self) -> bool:
        return self._tools is not None and self._tokenizer is not None

    def options(
        self,
        prompt_token_ids: Sequence[int],
        schemas: Mapping[str, Any],
        *,
        max_calls: int | None,
        skip_special_tokens: bool,
    ) -> ParserOptions | None:
        """What to look for in the answers of one request; None: they are content only.

        Args:
            schemas: the JSON schema of the parameters of each tool, by name.
            max_calls: number of calls that end an answer; None: no limit.
            skip_special_tokens: special tokens have no text.
        """
        tools = self._tools if schemas else None
        if self._tokenizer is None or (tools is None and self._reasoning is None):
            return None
        return ParserOptions(
            markers=self._marker_tokens(self._tokenizer, skip_special_tokens),
            reasoning=self._reasoning,
            tools=tools,
            schemas=schemas,
            starts_inside_reasoning=self._starts_inside(self._tokenizer, prompt_token_ids),
            max_calls=max_calls,
        )

    def _marker_tokens(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> MarkerTokens:
        if skip_special_tokens not in self._markers:
            literals: tuple[str, ...] = ()
            if self._tools is not None:
                literals += self._tools.literals()
            if self._reasoning is not None:
                literals += self._reasoning.opens + self._reasoning.closes
            hidden = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
            self._markers[skip_special_tokens] = MarkerTokens(
                tokenizer.added_tokens, hidden, literals
            )
        return self._markers[skip_special_tokens]

    def _starts_inside(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int]) -> bool:
        form: ReasoningFormat | None = self._reasoning
        if form is None:
            return False
        ending = tokenizer.decode(
            list(prompt_token_ids[-_PROMPT_TAIL:]), skip_special_tokens=False
        ).rstrip()
        if ending.endswith(form.closes):
            return False
        return form.starts_inside or ending.endswith(form.opens)


def _named(flag: str, formats: Mapping[str, Format], name: str | None) -> Format | None:
    if name is None:
        return None
    if name not in formats:
        raise ConfigurationError(f"{flag} {name}: unknown; choose one of {', '.join(formats)}")
    return formats[name]
