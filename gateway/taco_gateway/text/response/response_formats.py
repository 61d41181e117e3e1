"""The formats of the served model, and the parser options of its requests."""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import Any, TypeVar

from taco_gateway.text.grammar.answer_rules import (
    AnswerRules,
    AnswerWish,
    CallRules,
    ChannelRules,
    ReasoningRules,
    ids_without_text,
)
from taco_gateway.text.response.built_in import (
    CHANNEL_REASONING,
    CHANNEL_TOOLS,
    REASONING_FORMATS,
    TOOL_FORMATS,
)
from taco_gateway.text.response.channel_format import HARMONY, ChannelFormat
from taco_gateway.text.response.formats import ReasoningFormat, ToolFormat
from taco_gateway.text.response.marker_tokens import MarkerTokens
from taco_gateway.text.response.plugins import Reasoning, Tools, load_reasoning, load_tools
from taco_gateway.text.response.response_parser import ParserOptions
from taco_gateway.text.response.response_template import (
    ContentMarkerError,
    reasoning_format,
    tool_format,
)
from taco_gateway.text.response.template_patterns import TemplateError
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.errors import ConfigurationError, InvalidParameterError

Format = TypeVar("Format")
AUTO = "auto"
_PROMPT_TAIL = 16  # tokens at the end of a prompt that may hold a marker


class _Stage(Enum):
    """Where an answer begins: before, inside or after its reasoning."""

    BEFORE = auto()
    INSIDE = auto()
    AFTER = auto()


class ResponseFormats:
    """The formats in which the served model writes calls and reasoning.

    Args:
        tokenizer: of the model; None: nothing is parsed.
        tool_parser, reasoning_parser: names of formats, or `auto` for the checkpoint's own response
            template; None: no such format. Without both, answers of gpt-oss are read all the same:
            their text without special tokens makes no sense.
        tool_plugin, reasoning_plugin: places of further formats; see `plugins`.

    Raises:
        ConfigurationError: there is no such format, or a plug-in or the template cannot be used.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        tool_parser: str | None,
        reasoning_parser: str | None,
        *,
        tool_plugin: str | None = None,
        reasoning_plugin: str | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        template = None if tokenizer is None else tokenizer.settings.response_template
        tools: dict[str, Tools | ChannelFormat] = {**TOOL_FORMATS, CHANNEL_TOOLS: HARMONY}
        if tool_plugin is not None:
            tools |= load_tools(tool_plugin)
        hidden = frozenset[str]()
        if tokenizer is not None:
            special = tokenizer.special_ids
            hidden = frozenset(
                t for t, number in tokenizer.added_tokens.items() if number in special
            )
        chosen_tools = _chosen(
            "--tool-call-parser", tools, tool_parser, partial(tool_format, hidden=hidden), template
        )
        reasoning: dict[str, Reasoning | ChannelFormat] = {
            **REASONING_FORMATS,
            CHANNEL_REASONING: HARMONY,
        }
        if reasoning_plugin is not None:
            reasoning |= load_reasoning(reasoning_plugin)
        chosen_reasoning = _chosen(
            "--reasoning-parser",
            reasoning,
            reasoning_parser,
            partial(reasoning_format, hidden=hidden),
            template,
        )
        if chosen_tools is None and chosen_reasoning is None and _writes_channels(tokenizer):
            chosen_reasoning = HARMONY
        self._tools, self._reasoning, self._channels = _parts(chosen_tools, chosen_reasoning)
        if self._channels is not None and tokenizer is not None:
            _check_tokens(self._channels, tokenizer)
        self._markers: dict[bool, MarkerTokens] = {}

    @property
    def has_channels(self) -> bool:
        """Answers are messages for channels, of which only some are content."""
        return self._channels is not None

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
        content_is_constrained: bool = False,
        continued: str | None = None,
    ) -> ParserOptions | None:
        """What to look for in the answers of one request; None: they are content only.

        Args:
            schemas: the JSON schema of the parameters of each tool, by name.
            max_calls: number of calls that end an answer; None: no limit.
            skip_special_tokens: special tokens have no text.
            content_is_constrained: content with markers in it is content.
            continued: the text of the message that the answers continue; None: they begin one.
        """
        tools = self._tools if schemas else None
        if self._tokenizer is None or (tools is None and self._reasoning is None):
            return None
        prompt_end = self._prompt_end(self._tokenizer, prompt_token_ids)
        stage = self._stage(prompt_end, continued)
        return ParserOptions(
            markers=self._marker_tokens(self._tokenizer, skip_special_tokens),
            reasoning=self._reasoning,
            tools=tools,
            channels=self._channels,
            schemas=schemas,
            starts_inside_reasoning=stage is _Stage.INSIDE,
            starts_inside_content=stage is _Stage.AFTER,
            prompt_end=prompt_end,
            max_calls=max_calls,
            calls_begin_answer=content_is_constrained,
        )

    def rules(
        self,
        prompt_token_ids: Sequence[int],
        wish: AnswerWish,
        end_ids: Collection[int],
        *,
        continued: str | None = None,
    ) -> AnswerRules | None:
        """What a grammar has to make sure of in the answer of one request; None: nothing.

        Args:
            end_ids: tokens that end the answer.
            continued: as in `options`.

        Raises:
            InvalidParameterError: the server's formats cannot serve the request.
        """
        reasoning = self._reasoning_rules(prompt_token_ids, wish, continued)
        limits_reasoning = wish.max_reasoning_tokens is not None
        is_needed = limits_reasoning or (wish.has_constraint and reasoning is not None)
        # A grammar of messages allows only the calls that it knows.
        has_calls = wish.constrains_calls
        has_calls |= is_needed and self._channels is not None and bool(wish.tools)
        calls = self._call_rules(wish) if has_calls else None
        if self._tokenizer is None or not (is_needed or calls is not None):
            return None
        added, special = self._tokenizer.added_tokens, self._tokenizer.special_ids
        return AnswerRules(
            markers=self._marker_tokens(self._tokenizer, skip_special_tokens=False).ids,
            special_ids=ids_without_text(added, special),
            end_ids=frozenset(end_ids),
            vocab_size=self._tokenizer.vocab_size,
            reasoning=reasoning,
            calls=calls,
            channels=self._channel_rules(prompt_token_ids, continued),
        )

    def _channel_rules(
        self, prompt_token_ids: Sequence[int], continued: str | None
    ) -> ChannelRules | None:
        if self._channels is None or self._tokenizer is None:
            return None
        stage = self._stage(self._prompt_end(self._tokenizer, prompt_token_ids), continued)
        return ChannelRules(format=self._channels, in_content=stage is _Stage.AFTER)

    def _call_rules(self, wish: AnswerWish) -> CallRules | None:
        """Raises InvalidParameterError: the calls need a grammar, and the format has none."""
        if self._tools is None:
            return None
        if isinstance(self._tools, ToolFormat):
            return CallRules(
                format=self._tools,
                tools=wish.tools,
                is_required=wish.requires_call,
                has_one_call=wish.has_one_call,
            )
        for field, is_given in (
            ("tool_choice", wish.requires_call),
            ("tools", wish.has_strict_tool),
            ("response_format", wish.has_constraint),
        ):
            if is_given:
                raise InvalidParameterError(
                    f"{field}: the server's parser of tool calls is a class, which gives no "
                    "grammar: only tool_choice 'auto' without strict tools and constraints is "
                    "supported.",
                    field,
                    "unsupported_parameter",
                )
        return None

    def _reasoning_rules(
        self, prompt_token_ids: Sequence[int], wish: AnswerWish, continued: str | None
    ) -> ReasoningRules | None:
        """None: the answer has no reasoning that a grammar has to allow.

        Raises InvalidParameterError: its length is limited, and the format has no grammar.
        """
        form = self._reasoning
        if not isinstance(form, ReasoningFormat):
            if wish.max_reasoning_tokens is not None:
                raise InvalidParameterError(
                    "thinking_token_budget is not supported by this server: start it with "
                    "--reasoning-parser and the name of a format that is no class.",
                    "thinking_token_budget",
                    "unsupported_parameter",
                )
            return None
        if self._tokenizer is None:
            return None
        stage = self._stage(self._prompt_end(self._tokenizer, prompt_token_ids), continued)
        if stage is _Stage.AFTER:
            return None
        return ReasoningRules(
            format=form,
            has_begun=stage is _Stage.INSIDE,
            max_tokens=wish.max_reasoning_tokens,
            end_token_ids=self._end_token_ids(self._tokenizer, form, wish),
        )

    @staticmethod
    def _end_token_ids(
        tokenizer: Tokenizer, form: ReasoningFormat, wish: AnswerWish
    ) -> tuple[int, ...]:
        """The tokens that end a reasoning of limited length.

        Raises InvalidParameterError: the vocabulary cannot write the marker.
        """
        if wish.max_reasoning_tokens is None:
            return ()
        marker = form.closes[0]
        token_ids = tokenizer.encode(marker, add_special_tokens=False)
        if not tokenizer.decode(token_ids, skip_special_tokens=False).endswith(marker):
            raise InvalidParameterError(
                f"thinking_token_budget is not supported: the model's vocabulary cannot write "
                f"{marker!r}, which ends the reasoning.",
                "thinking_token_budget",
                "unsupported_parameter",
            )
        return tuple(token_ids)

    def _marker_tokens(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> MarkerTokens:
        if skip_special_tokens not in self._markers:
            hidden = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
            self._markers[skip_special_tokens] = MarkerTokens(
                tokenizer.added_tokens, hidden, self._literals()
            )
        return self._markers[skip_special_tokens]

    def _prompt_end(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int]) -> str:
        """The text in which the prompt may open or close the reasoning."""
        if self._reasoning is None:
            return ""
        tail = list(prompt_token_ids[-_PROMPT_TAIL:])
        return tokenizer.decode(tail, skip_special_tokens=False)

    def _literals(self) -> tuple[str, ...]:
        literals = () if self._channels is None else self._channels.literals()
        for form in (self._tools, self._reasoning):
            if isinstance(form, type):
                literals += form.markers
            elif form is not None:
                literals += form.literals()
        return literals

    def _stage(self, prompt_end: str, continued: str | None) -> _Stage:
        """Where the answer begins. In a message that it continues, the last marker tells."""
        if self._channels is not None:
            return _stage_of_channels(self._channels, prompt_end, continued)
        form = self._reasoning
        if not isinstance(form, ReasoningFormat):
            return _Stage.BEFORE
        if continued is not None:
            is_open = _last(form.opens, continued) > _last(form.closes, continued)
            return _Stage.INSIDE if is_open else _Stage.AFTER
        prompt_end = prompt_end.rstrip()
        if prompt_end.endswith(form.closes):
            return _Stage.AFTER
        is_open = form.starts_inside or prompt_end.endswith(form.opens)
        return _Stage.INSIDE if is_open else _Stage.BEFORE


def _stage_of_channels(form: ChannelFormat, prompt_end: str, continued: str | None) -> _Stage:
    if continued is not None:
        return _Stage.AFTER
    if prompt_end.endswith(form.reasoning_header):
        return _Stage.INSIDE
    is_begun = _last((form.message,), prompt_end) > _last((form.start, form.end), prompt_end)
    return _Stage.AFTER if is_begun else _Stage.BEFORE


def _parts(
    tools: Tools | ChannelFormat | None, reasoning: Reasoning | ChannelFormat | None
) -> tuple[Tools | None, Reasoning | None, ChannelFormat | None]:
    """The formats of calls and of reasoning, and that of channels if the answer has them.

    Channels for calls are channels for reasoning too, since both are in the headers of messages.

    Raises:
        ConfigurationError: one of the formats has channels, and the other one has none.
    """
    if isinstance(tools, ChannelFormat):
        if reasoning is None or isinstance(reasoning, ChannelFormat):
            return tools.call, tools.reasoning, tools
    elif not isinstance(reasoning, ChannelFormat):
        return tools, reasoning, None
    elif tools is None:
        return None, reasoning.reasoning, reasoning
    raise ConfigurationError(
        f"--tool-call-parser {CHANNEL_TOOLS} and --reasoning-parser {CHANNEL_REASONING} are for "
        "the same models: give both, or one of them alone"
    )


def _writes_channels(tokenizer: Tokenizer | None) -> bool:
    """Whether the model is gpt-oss, the only one with these tokens."""
    return tokenizer is not None and all(one in tokenizer.added_tokens for one in HARMONY.tokens)


def _check_tokens(channels: ChannelFormat, tokenizer: Tokenizer) -> None:
    """Raises ConfigurationError if the vocabulary lacks the tokens of the headers."""
    if missing := [token for token in channels.tokens if token not in tokenizer.added_tokens]:
        raise ConfigurationError(
            f"--tool-call-parser {CHANNEL_TOOLS} and --reasoning-parser {CHANNEL_REASONING} are "
            f"for gpt-oss: the model's tokenizer has no token {', '.join(missing)}"
        )


def _last(markers: Sequence[str], text: str) -> int:
    """Where the last of the markers begins; -1: nowhere."""
    return max(map(text.rfind, markers), default=-1)


def _chosen(
    flag: str,
    formats: Mapping[str, Format],
    name: str | None,
    from_template: Callable[[Mapping[str, Any]], Format],
    template: Mapping[str, Any] | None,
) -> Format | None:
    if name is None:
        return None
    if name == AUTO:
        if template is None:
            raise ConfigurationError(
                f"{flag} auto: the checkpoint has no response_template in tokenizer_config.json; "
                f"choose one of {', '.join(formats)}"
            )
        try:
            return from_template(template)
        except ContentMarkerError as error:
            plugin = "--tool-parser-plugin" if "tool" in flag else "--reasoning-parser-plugin"
            raise ConfigurationError(
                f"{flag} auto: the checkpoint's response_template cannot be used: {error}; leave "
                f"{flag} out, or pass {plugin} FILE with a class that removes it (docs/tools.md)"
            ) from None
        except TemplateError as error:
            raise ConfigurationError(
                f"{flag} auto: the checkpoint's response_template cannot be used: {error}; choose "
                f"one of {', '.join(formats)}, or write a plug-in (docs/tools.md)"
            ) from None
    if name not in formats:
        raise ConfigurationError(
            f"{flag} {name}: unknown; choose one of auto, {', '.join(formats)}"
        )
    return formats[name]
