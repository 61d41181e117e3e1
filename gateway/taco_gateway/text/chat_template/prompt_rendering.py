"""Turns conversations into prompts: renders the chat template and tokenizes the result.

Only the template may write special tokens. Where a message contains the text of one, or ends with
the beginning of one that the next text may complete, a mark replaces that text before the template
runs. The special tokens in the rendered text are then those of the template. The text is tokenized
with exactly these as special tokens, and the marks become plain text again.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from taco_gateway.text.chat_template.cache_breakpoints import (
    Breakpoint,
    common_prefix_length,
    with_other_text_after,
)
from taco_gateway.text.chat_template.special_token_search import SpecialTokenSearch
from taco_gateway.text.chat_template.template_messages import template_message
from taco_gateway.text.chat_template.template_pool import TemplatePool
from taco_gateway.text.chat_template.template_source import (
    PLAIN_TEMPLATE,
    ChatTemplate,
    read_chat_template,
)
from taco_gateway.text.chat_template.text_marks import TextMarks
from taco_gateway.text.request_checks import check_prompt_length, check_text
from taco_gateway.text.tokenizer.tokenizer import Tokenizer
from taco_proto.errors import ConfigurationError, InvalidParameterError

_log = logging.getLogger("taco.gateway.chat")


class ChatPromptEncoder:
    """Tokenizes conversations. Its methods block for milliseconds: call them from a thread.

    Args:
        tokenizer: of the model.
        chat_template: a template or its path; None: that of the model, or else a plain one.

    Raises:
        ConfigurationError: the template cannot be read.
    """

    def __init__(self, tokenizer: Tokenizer, chat_template: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._pool = TemplatePool()
        source = tokenizer.settings.chat_template
        if chat_template is not None:
            source = read_chat_template(chat_template)
        if source is None:
            _log.warning("the model has no chat template: conversations become plain text")
        self._template = ChatTemplate(PLAIN_TEMPLATE if source is None else source, self._pool)
        self._plain_template = self._template if source is None else None
        self._tool_template = self._template
        if chat_template is None and (tool_source := tokenizer.settings.tool_template) is not None:
            self._tool_template = ChatTemplate(tool_source, self._pool)
        if chat_template is not None:
            self._check_template()
        self._prefix = tokenizer.prefix_token_ids()
        self._spellings = {i: text for text, i in tokenizer.special_tokens.items()}
        self._special = SpecialTokenSearch(tokenizer.special_tokens)
        self._marks = TextMarks()
        self._end_mark = self._marks.new()

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool | None = None,
        chat_template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        documents: Sequence[Mapping[str, Any]] = (),
        max_model_len: int | None = None,
    ) -> list[int]:
        """Token ids of a conversation; see `TextEngine.encode_chat`.

        Args:
            max_model_len: reject a prompt that has at least this number of tokens for sure,
                before it is tokenized.
        """
        if not messages:
            raise InvalidParameterError("messages must not be empty", "messages")
        if continue_final_message and add_generation_prompt:
            raise InvalidParameterError(
                "continue_final_message and add_generation_prompt exclude each other",
                "continue_final_message",
            )
        template = self._tool_template if tools else self._template
        if chat_template is not None:
            template = ChatTemplate(chat_template, self._pool)
        try:
            marked = [self._marked_message(template_message(message)) for message in messages]
        except RecursionError:
            raise InvalidParameterError("messages are nested too deeply", "messages") from None
        for message in marked:
            _check_content(message.get("content"))
        if continue_final_message:
            _append_to_content(marked[-1], f"{self._end_mark} ")
        settings = self._tokenizer.settings
        tokens = {"bos_token": settings.bos_token, "eos_token": settings.eos_token}
        variables: dict[str, Any] = {
            name: token for name, token in tokens.items() if token is not None
        }
        variables["add_generation_prompt"] = add_generation_prompt
        if tools:
            variables["tools"] = [_with_own(self._marked(tool), tool, "type") for tool in tools]
        if documents:
            variables["documents"] = self._marked(documents)
        text = template.render(marked, variables, self._marked(template_kwargs or {}))
        if continue_final_message:
            text = self._cut_at_end_mark(text)
        check_text(text, "messages")
        if max_model_len is not None:
            num_tokens = self._tokenizer.min_num_tokens(self._marks.replaced(text))
            check_prompt_length(num_tokens, max_model_len, param="messages", at_least=True)
        token_ids = self._encode_text(text)
        if add_special_tokens is None:
            add_special_tokens = template is self._plain_template
        if add_special_tokens and token_ids[: len(self._prefix)] != self._prefix:
            return self._prefix + token_ids
        return token_ids

    def num_tokens_before(
        self,
        place: Breakpoint,
        messages: Sequence[Mapping[str, Any]],
        token_ids: Sequence[int],
        *,
        add_special_tokens: bool | None = None,
        chat_template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        documents: Sequence[Mapping[str, Any]] = (),
    ) -> int:
        """Number of tokens of a conversation that do not depend on the text after a place.

        0 if the template rejects the changed conversation.

        Args:
            token_ids: of the conversation, from `encode`.
        """
        try:
            others = self.encode(
                with_other_text_after(place, messages),
                add_generation_prompt=False,
                add_special_tokens=add_special_tokens,
                chat_template=chat_template,
                template_kwargs=template_kwargs,
                tools=tools,
                documents=documents,
            )
        except InvalidParameterError as error:  # although it accepted the client's text
            _log.debug("cannot place %s in the prompt: %s", place, error)
            return 0
        count = common_prefix_length(token_ids, others)
        if count and token_ids[count - 1] not in self._spellings:
            return count - 1  # the last token may depend on the text after it
        return count

    def close(self) -> None:
        self._pool.close()

    def warm_up(self) -> None:
        """Starts a child process and analyzes the template, so that the first chat does not wait.

        With a broken template of the model, completions still work.
        """
        try:
            _ = self._template.features
        except InvalidParameterError as error:
            _log.warning("chat requests will be rejected: %s", error)

    def _check_template(self) -> None:
        try:
            _ = self._template.features
        except InvalidParameterError as error:
            self.close()
            raise ConfigurationError(str(error)) from None

    def _marked_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        marked = _with_own(self._marked(message), message, "role")
        for field in ("content", "tool_calls"):
            if isinstance(message.get(field), list | tuple):
                pairs = zip(marked[field], message[field], strict=True)
                marked[field] = [_with_own(*pair, "type") for pair in pairs]
        return marked

    def _marked(self, value: Any) -> Any:
        """A copy of JSON data in which marks replace the text of special tokens."""
        if isinstance(value, str):
            return self._marked_text(value)
        if isinstance(value, Mapping):
            return {self._marked(name): self._marked(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._marked(item) for item in value]
        if value is None or isinstance(value, int | float):
            return value
        raise InvalidParameterError(
            f"messages must be plain data, got a {type(value).__name__}", "messages"
        )

    def _marked_text(self, text: str) -> str:
        parts: list[str] = []
        end = 0
        for match in self._special.matches(text):
            parts += [text[end : match.start()], self._marks.of(match[0])]
            end = match.end()
        rest = text[end:]
        if beginning := self._special.beginning_at_end(rest):
            parts += [rest.removesuffix(beginning), self._marks.of(beginning)]
        elif parts:
            parts += [rest]
        return "".join(parts) if parts else text

    def _cut_at_end_mark(self, text: str) -> str:
        end = text.rfind(self._end_mark)
        if end < 0:
            raise InvalidParameterError(
                "the chat template leaves out the end of the final message",
                "continue_final_message",
            )
        # A template that trims messages has removed the space after the mark. It would also have
        # trimmed the end of the message.
        kept = text[:end]
        return kept if text.startswith(" ", end + len(self._end_mark)) else kept.rstrip()

    def _encode_text(self, text: str) -> list[int]:
        own = list(self._special.matches(text))
        if not self._marks.are_in(text):
            token_ids = self._tokenizer.encode(text, add_special_tokens=False)
            # Normalization may turn other text into the text of a special token.
            if sum(map(self._spellings.__contains__, token_ids)) == len(own):
                return token_ids
        parts: list[str | int] = []
        end = 0
        for match in own:
            parts += [self._marks.replaced(text[end : match.start()])]
            parts += [self._tokenizer.special_tokens[match[0]]]
            end = match.end()
        parts += [self._marks.replaced(text[end:])]
        return self._tokenizer.encode_parts([part for part in parts if part != ""])


def _with_own(marked: Any, given: Any, field: str) -> Any:
    """The marked copy, but with the given value of a field that validation has checked.

    Templates build special tokens from such fields (`<|user|>`).
    """
    if isinstance(given, Mapping) and field in given:
        marked[field] = given[field]
    return marked


def _check_content(content: Any) -> None:
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise InvalidParameterError("content parts must be text", "messages")


def _append_to_content(message: dict[str, Any], text: str) -> None:
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + text
    elif content:
        content[-1] = {**content[-1], "text": content[-1]["text"] + text}
    else:
        raise InvalidParameterError(
            "the final message has no text to continue", "continue_final_message"
        )
